//! A pooler in between. The servers are fakes that say what PgBouncer says: its own would have to be installed for these sentences.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use postrider_core::error::{ErrorKind, Reaction};
use postrider_core::ports::LogSource as _;
use postrider_postgres::ReplicationSource;

use crate::{parse, refused_at};

/// What PgBouncer knows in a start-up message beside `user` and `database`; `client_encoding` and its like are passed on.
const KNOWN: [&str; 4] = ["user", "database", "client_encoding", "application_name"];

/// Starts a pooler that takes these parameters, too, and leaves them out; its sessions are in this time zone.
fn pooler(ignored: &'static [&'static str], zone: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // It ends with the test's process.
    thread::spawn(move || {
        for stream in listener.incoming() {
            let _closed = serve(stream.unwrap(), ignored, zone);
        }
    });
    format!("postgres://me:hush@127.0.0.1:{port}/q")
}

fn serve(mut stream: TcpStream, ignored: &[&str], zone: &str) -> std::io::Result<()> {
    let mut startup = read_sized(&mut stream)?;
    if startup[..4] == 80_877_103_u32.to_be_bytes() {
        stream.write_all(b"N")?;
        startup = read_sized(&mut stream)?;
    }
    let texts: Vec<String> =
        startup[4..].split(|&byte| byte == 0).map(|text| String::from_utf8_lossy(text).into_owned()).collect();
    let unsupported = texts
        .chunks(2)
        .map(|pair| pair[0].as_str())
        .find(|name| !name.is_empty() && !KNOWN.contains(name) && !ignored.contains(name));
    if let Some(name) = unsupported {
        return say(&mut stream, b'E', &format!("SFATAL\0C08P01\0Munsupported startup parameter: {name}\0\0"));
    }
    say(&mut stream, b'R', "\0\0\0\0")?;
    say(&mut stream, b'S', &format!("TimeZone\0{zone}\0"))?;
    say(&mut stream, b'Z', "I")?;
    let mut query = [0; 5];
    stream.read_exact(&mut query)?;
    say(&mut stream, b'E', "SERROR\0C42601\0Msyntax error at or near \"IDENTIFY_SYSTEM\"\0\0")?;
    say(&mut stream, b'Z', "I")
}

fn read_sized(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut length = [0; 4];
    stream.read_exact(&mut length)?;
    let mut body = vec![0; usize::try_from(u32::from_be_bytes(length)).unwrap() - 4];
    stream.read_exact(&mut body)?;
    Ok(body)
}

fn say(stream: &mut TcpStream, tag: u8, body: &str) -> std::io::Result<()> {
    let mut message = vec![tag];
    message.extend(u32::try_from(body.len() + 4).unwrap().to_be_bytes());
    message.extend(body.as_bytes());
    stream.write_all(&message)
}

#[tokio::test]
async fn s_10_a_pooler_in_between_is_refused_in_a_clear_text() {
    for (ignored, zone) in [(&[][..], "UTC"), (&["options", "replication"], "Europe/Berlin")] {
        let error = refused_at(&pooler(ignored, zone), ErrorKind::Configuration, "pooler").await;
        assert_eq!(error.kind().reaction(), Reaction::Halt);
    }
    // One that takes ordinary sessions only, and one that throws away what it does not know, in front of a server that happens to be
    // as we pin it.
    for ignored in [&["options"][..], &["options", "replication"]] {
        let options = parse(&pooler(ignored, "UTC")).unwrap();
        let error = ReplicationSource::new(options, "s", "p").identify().await.unwrap_err();
        assert_eq!(
            (error.kind(), error.kind().reaction()),
            (ErrorKind::Configuration, Reaction::Halt),
            "{}",
            error.report()
        );
        assert!(error.report().contains("PgBouncer"), "{}", error.report());
    }
}
