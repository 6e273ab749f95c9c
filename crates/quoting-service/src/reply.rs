//! What: turns what happened to a request into an HTTP answer.
//! Where: between the transaction and the wire.
//! Takes and gives: a stored or fresh answer, or why there is none; a response.
//! Never: claims that nothing was done when that is not known.

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Response, StatusCode};
use postrider_receiver::{Answer, Error, ErrorKind, Outcome};

/// How often a transaction is run that the database undoes to keep others correct.
const RUNS: usize = 3;

/// What a transaction came to.
#[derive(Debug)]
pub(crate) struct Executed {
    /// What to send.
    pub(crate) answer: Answer,
    /// Whether the work was done before; `None` if it was neither done nor looked up.
    pub(crate) replayed: Option<bool>,
}

/// Why a transaction came to nothing that can be told as an answer of its own.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was rolled back: nothing was done.
    NotDone(Error),
    /// The commit's own reply is missing: it may have been done or not.
    Unknown(Error),
}

impl<E: Into<Error>> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure::NotDone(error.into())
    }
}

impl Failure {
    /// What a failed commit means: an error that the database sent says that it did not happen, a lost connection
    /// says nothing.
    pub(crate) fn of_commit(error: tokio_postgres::Error) -> Failure {
        if error.as_db_error().is_some() { Failure::NotDone(error.into()) } else { Failure::Unknown(error.into()) }
    }

    /// Whether the same transaction may end otherwise when it is run again at once.
    fn is_retry(&self) -> bool {
        matches!(self, Failure::NotDone(error) if error.kind() == ErrorKind::Retry)
    }

    /// The answer: 503 with `retry` where nothing was done, a bare 500 where it is not known.
    fn into_executed(self) -> Executed {
        let (word, error, answer) = match self {
            Failure::NotDone(error) => ("not done", error, Answer::of(503, Outcome::Retry)),
            Failure::Unknown(error) => ("unknown", error, Answer { status: 500, ..Answer::default() }),
        };
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        eprintln!("quoting-service: {word}: {error}: {cause}");
        Executed { answer, replayed: None }
    }
}

/// Runs a transaction to an answer, again from its start where the database asks for that.
pub(crate) async fn run<F>(transact: impl Fn() -> F) -> Executed
where
    F: Future<Output = Result<Executed, Failure>>,
{
    let mut runs = 1;
    loop {
        match transact().await {
            Ok(executed) => return executed,
            Err(failure) if failure.is_retry() && runs < RUNS => runs += 1,
            Err(failure) => return failure.into_executed(),
        }
    }
}

/// A refusal of the request itself, as RFC 9457 has it.
pub(crate) fn problem(status: u16, title: &str) -> Answer {
    let mut answer = Answer::of(status, Outcome::Permanent).with("Content-Type", "application/problem+json");
    answer.body = serde_json::json!({ "title": title, "status": status }).to_string().into_bytes();
    answer
}

/// The answer as the server sends it: status, header lines and body are those given, and nothing is added but what
/// belongs to the connection.
pub(crate) fn respond(answer: Answer) -> Response<Body> {
    let mut response = Response::new(Body::from(answer.body));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in answer.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            response.headers_mut().append(name, value);
        }
    }
    response
}
