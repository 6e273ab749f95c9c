//! What: the command line of the quoting service.
//! Where: a process of its own, at the address that the stages' and the sink's URLs name.
//! Takes and gives: arguments; the line `listening on ADDRESS` on stdout when it is ready.
//! Never: decides anything about a request.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use quoting_service::{Faults, Sabotage, Service, Settings, serve};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

/// A stand-in for an application's core services: stages as endpoints, and a consumer of outbox events.
#[derive(Debug, Parser)]
#[command(name = "quoting-service")]
struct Arguments {
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: String,
    /// Database that holds the business tables; they are created if they are not there.
    #[arg(long, value_name = "URL")]
    database: tokio_postgres::Config,
    /// Seed of the faults: the same seed gives the same request the same fault.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Share of requests, 0 to 1, whose connection is reset after the commit instead of answered.
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = share)]
    drop_replies: f64,
    /// Share of requests, 0 to 1, that are answered late, after the commit.
    #[arg(long, value_name = "P", default_value_t = 0.0, value_parser = share)]
    stall: f64,
    /// How late, in milliseconds.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    stall_ms: u64,
    /// Take a safety away, to see that a test notices.
    #[arg(long, value_enum, value_name = "WHICH")]
    sabotage: Option<Sabotage>,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(arguments).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report(error.as_ref());
            ExitCode::FAILURE
        }
    }
}

async fn run(arguments: Arguments) -> Result<(), Box<dyn std::error::Error>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let listener = TcpListener::bind(&arguments.listen).await?;
    let service = Service::open(Settings {
        database: arguments.database,
        faults: Faults {
            seed: arguments.seed,
            drop_replies: arguments.drop_replies,
            stall: arguments.stall,
            stall_for: Duration::from_millis(arguments.stall_ms),
        },
        sabotage: arguments.sabotage,
    })
    .await?;
    println!("listening on {}", listener.local_addr()?);
    let stop = async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    serve(listener, service, stop).await?;
    Ok(())
}

fn report(error: &dyn std::error::Error) {
    eprint!("quoting-service: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        eprint!(": {error}");
        cause = error.source();
    }
    eprintln!();
}

fn share(typed: &str) -> Result<f64, String> {
    match typed.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("a share is a number from 0 to 1".to_owned()),
    }
}
