//! The socket under a connection: TCP or a socket of the file system, with TLS over TCP where it is asked
//! for.

use std::io;
use std::os::fd::{AsRawFd as _, RawFd};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};

use crate::options::{ConnectOptions, Endpoint};
use crate::tls::Encrypted;

/// An open socket.
#[derive(Debug)]
pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Tls(Box<Encrypted<TcpStream>>),
}

/// Sets the low-water mark of a TCP socket, under TLS too. It must not outlive the socket, so that it stays with the
/// socket's reading half.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LowWaterMark {
    descriptor: RawFd,
    is_local: bool,
}

impl Socket {
    /// Connects; for TCP with `TCP_NODELAY`, keep-alives and `TCP_USER_TIMEOUT`, so that a server that vanished is
    /// noticed.
    pub(crate) async fn connect(options: &ConnectOptions, endpoint: &Endpoint) -> io::Result<Socket> {
        match endpoint {
            Endpoint::Unix { directory, port } => {
                UnixStream::connect(directory.join(format!(".s.PGSQL.{port}"))).await.map(Socket::Unix)
            }
            Endpoint::Tcp { address: Some(address), port, .. } => {
                let stream = TcpStream::connect((*address, *port)).await?;
                tune(&stream, options)?;
                Ok(Socket::Tcp(stream))
            }
            Endpoint::Tcp { host, port, .. } => {
                let mut failure = None;
                for address in lookup_host((host.as_str(), *port)).await? {
                    match TcpStream::connect(address).await {
                        Ok(stream) => {
                            tune(&stream, options)?;
                            return Ok(Socket::Tcp(stream));
                        }
                        Err(error) => failure = Some(error),
                    }
                }
                Err(failure.unwrap_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the host name has no address")))
            }
        }
    }

    /// What sets the low-water mark; `None` on sockets of the file system, which know none, and on systems other than
    /// Linux, where raising it
    /// saves nothing.
    pub(crate) fn low_water_mark(&self) -> Option<LowWaterMark> {
        if !cfg!(target_os = "linux") {
            return None;
        }
        let stream = match self {
            Socket::Tcp(stream) => stream,
            Socket::Tls(stream) => stream.socket(),
            Socket::Unix(_) => return None,
        };
        let ends = stream.local_addr().ok().zip(stream.peer_addr().ok());
        let is_local = ends.is_some_and(|(ours, theirs)| ours.ip() == theirs.ip());
        Some(LowWaterMark { descriptor: stream.as_raw_fd(), is_local })
    }

    /// The server certificate's hash that SCRAM may bind to.
    pub(crate) fn end_point(&self) -> Option<Vec<u8>> {
        match self {
            Socket::Tls(stream) => stream.end_point(),
            Socket::Tcp(_) | Socket::Unix(_) => None,
        }
    }
}

impl LowWaterMark {
    /// Both ends of the connection are on this machine.
    pub(crate) fn is_local(self) -> bool {
        self.is_local
    }

    /// Keeps the receiving window at this size, for as long as the connection lasts.
    pub(crate) fn bound_window(self, bytes: i32) -> io::Result<()> {
        set_option(self.descriptor, libc::SOL_SOCKET, libc::SO_RCVBUF, bytes)
    }

    /// Wakes the reader only once so many bytes are queued. Lowering it reports what is queued already.
    pub(crate) fn set(self, bytes: i32) -> io::Result<()> {
        set_option(self.descriptor, libc::SOL_SOCKET, libc::SO_RCVLOWAT, bytes)
    }
}

impl AsyncRead for Socket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_read(cx, buffer),
            Socket::Unix(stream) => Pin::new(stream).poll_read(cx, buffer),
            Socket::Tls(stream) => Pin::new(stream).poll_read(cx, buffer),
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_write(cx, bytes),
            Socket::Unix(stream) => Pin::new(stream).poll_write(cx, bytes),
            Socket::Tls(stream) => Pin::new(stream).poll_write(cx, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_flush(cx),
            Socket::Unix(stream) => Pin::new(stream).poll_flush(cx),
            Socket::Tls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Socket::Tcp(stream) => Pin::new(stream).poll_shutdown(cx),
            Socket::Unix(stream) => Pin::new(stream).poll_shutdown(cx),
            Socket::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

fn tune(stream: &TcpStream, options: &ConnectOptions) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let descriptor = stream.as_raw_fd();
    let policy = options.sockets;
    let count = |number: u32| i32::try_from(number).unwrap_or(i32::MAX);
    if let Some(keepalive) = policy.keepalive {
        set_option(descriptor, libc::SOL_SOCKET, libc::SO_KEEPALIVE, 1)?;
        if cfg!(target_os = "linux") {
            let values = [
                (libc::TCP_KEEPIDLE, keepalive.idle.map(whole_seconds)),
                (libc::TCP_KEEPINTVL, keepalive.interval.map(whole_seconds)),
                (libc::TCP_KEEPCNT, keepalive.count.map(count)),
            ];
            for (option, value) in values {
                if let Some(value) = value {
                    set_option(descriptor, libc::IPPROTO_TCP, option, value)?;
                }
            }
        }
    }
    if cfg!(target_os = "linux")
        && let Some(limit) = policy.tcp_user_timeout
    {
        let millis = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
        set_option(descriptor, libc::IPPROTO_TCP, libc::TCP_USER_TIMEOUT, millis)?;
    }
    Ok(())
}

fn whole_seconds(span: Duration) -> i32 {
    i32::try_from(span.as_secs()).unwrap_or(i32::MAX).max(1)
}

#[expect(unsafe_code, reason = "the standard library sets none of these options; the value outlives the call")]
#[expect(clippy::as_conversions, reason = "the size of a c_int fits in every socklen_t")]
fn set_option(descriptor: RawFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    // SAFETY: the pointer is to a c_int of the length given, for the duration of the call; a descriptor that is not
    // open is an error of the call.
    let outcome = unsafe {
        libc::setsockopt(
            descriptor,
            level,
            option,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    if outcome == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
