#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
use super::*;
use std::fs;
use std::time::Duration;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn watch() -> FileWatch {
    FileWatch::default().every(Duration::ZERO)
}

fn endpoint() -> Endpoint {
    Endpoint::parse("http://host/").unwrap()
}

#[tokio::test]
async fn headers_and_secrets_come_from_their_files_and_follow_them() {
    let dir = tempfile::tempdir().unwrap();
    let [token, name, secret] = ["token", "name", "secret"].map(|name| dir.path().join(name));
    fs::write(&token, "t1\n").unwrap();
    fs::write(&name, "n1").unwrap();
    fs::write(&secret, format!("{SECRET}\n")).unwrap();
    let endpoint = endpoint()
        .with_header_file("Authorization", "Bearer ", token.clone())
        .and_then(|endpoint| endpoint.with_header_file("x-name", "", name.clone()))
        .and_then(|endpoint| endpoint.with_header("x-plain", "p"))
        .unwrap()
        .with_signing_secret_file(secret.clone());
    let presented = present(&endpoint, &watch()).unwrap();
    let header = |name: &str| presented.current().headers[name].to_str().unwrap().to_owned();
    assert_eq!(["authorization", "x-name", "x-plain"].map(header), ["Bearer t1", "n1", "p"]);
    assert!(presented.current().headers["authorization"].is_sensitive());
    let one = presented.current().signers.sign("id", 1, b"");

    fs::write(&token, "t2\r\n").unwrap();
    fs::write(&secret, format!("{SECRET}\nwhsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYX\n")).unwrap();
    assert_eq!(["authorization", "x-name", "x-plain"].map(header), ["Bearer t2", "n1", "p"]);
    let two = presented.current().signers.sign("id", 1, b"");
    assert_eq!(two.split(' ').next(), Some(one.as_str()));
    assert_eq!(two.split(' ').count(), 2);
}

#[tokio::test]
async fn a_file_that_holds_no_credential_is_refused_with_its_name_and_without_its_text() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("token");
    for (content, word) in [
        (&b"hunter2\nx-evil: 1\n"[..], "line break"),
        (b"\n", "empty"),
        (b"hunter2\xff", "no text"),
        ("hunter2é".as_bytes(), "characters"),
    ] {
        fs::write(&path, content).unwrap();
        let endpoint = endpoint().with_header_file("authorization", "", path.clone()).unwrap();
        let error = present(&endpoint, &watch()).unwrap_err();
        let detail = error.detail().unwrap();
        assert!(detail.contains(word) && detail.contains(path.to_str().unwrap()), "{detail}");
        assert!(!format!("{error:?}").contains("hunter2"));
    }
    fs::write(&path, "hunter2").unwrap();
    let error = present(&endpoint().with_signing_secret_file(path), &watch()).unwrap_err();
    assert!(error.detail().unwrap().contains("whsec_"), "{error:?}");
}
