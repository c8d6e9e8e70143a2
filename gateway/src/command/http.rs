//! One question to an admin port.

use std::time::Duration;

use store_adapter::runtime::Env;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::output::Failure;

/// Longest answer that is read, bytes.
const ANSWER_LEN_MAX: u64 = 1 << 20;

/// An answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    /// HTTP's status code.
    pub(super) status: u16,
    /// The header lines, without the first.
    pub(super) head: String,
    /// What comes behind them.
    pub(super) body: String,
}

impl Answer {
    /// The value of a header.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (found, value) = line.split_once(':')?;
            found.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }
}

/// What `address` answers to a GET of `path`, within `patience`.
pub(super) async fn get(address: &str, path: &str, patience: Duration) -> Result<Answer, Failure> {
    let env = Env::real();
    let late = env.clock.sleep(patience);
    tokio::select! {
        biased;
        answer = Box::pin(ask(address, path)) => answer,
        () = late => Err(Failure::TimedOut(format!("{address}: no answer within {patience:?}"))),
    }
}

async fn ask(address: &str, path: &str) -> Result<Answer, Failure> {
    let broken = |error: std::io::Error| Failure::Unreachable(format!("{address}: {error}"));
    let mut stream = TcpStream::connect(address).await.map_err(broken)?;
    let request = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.map_err(broken)?;
    let mut bytes = Vec::new();
    let mut limited = stream.take(ANSWER_LEN_MAX);
    limited.read_to_end(&mut bytes).await.map_err(broken)?;
    let text = String::from_utf8_lossy(&bytes);
    parse(&text)
        .ok_or_else(|| Failure::Unreachable(format!("{address}: no HTTP: is this the admin port?")))
}

fn parse(text: &str) -> Option<Answer> {
    let (head, body) = text.split_once("\r\n\r\n")?;
    let (first, head) = head.split_once("\r\n").unwrap_or((head, ""));
    let rest = first.strip_prefix("HTTP/1.")?;
    let status = rest.split(' ').nth(1)?.parse().ok()?;
    Some(Answer {
        status,
        head: head.to_owned(),
        body: body.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_has_a_status_a_head_and_a_body() {
        let answer = parse("HTTP/1.1 503 Service Unavailable\r\nDate: x\r\nA:b\r\n\r\nhm\n");
        let answer = answer.unwrap();
        assert_eq!((answer.status, answer.body.as_str()), (503, "hm\n"));
        assert_eq!(
            (answer.header("date"), answer.header("a")),
            (Some("x"), Some("b"))
        );
        assert_eq!(answer.header("b"), None);
        for none in [
            "",
            "HTTP/1.1 200 OK",
            "SSH-2.0\r\n\r\n",
            "HTTP/1.1 x\r\n\r\n",
        ] {
            assert_eq!(parse(none), None, "{none:?}");
        }
    }
}
