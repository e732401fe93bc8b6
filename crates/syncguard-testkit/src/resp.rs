//! As much of Redis's protocol as it takes to find the end of a command and of a reply.

/// The scripts among the commands in a piece of a stream.
#[derive(Debug)]
pub(crate) struct Scripts<'a>(Vec<&'a [u8]>);

impl Scripts<'_> {
    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.concat()
    }
}

/// The scripts in a piece of complete commands, if there are any.
pub(crate) fn scripts(mut piece: &[u8]) -> Option<Scripts<'_>> {
    let mut scripts = Vec::new();
    while !piece.is_empty() {
        let (command, rest) = piece.split_at_checked(command_length(piece)?)?;
        let name = command.split(|byte| *byte == b'\n').nth(2)?;
        let name = name.trim_ascii_end().to_ascii_uppercase();
        if name == b"EVAL" || name == b"EVALSHA" {
            scripts.push(command);
        }
        piece = rest;
    }
    (!scripts.is_empty()).then_some(Scripts(scripts))
}

/// How many complete replies there are.
pub(crate) fn whole_replies(mut stream: &[u8]) -> usize {
    let mut count = 0;
    while let Some(rest) = reply_length(stream).and_then(|length| stream.get(length..)) {
        count += 1;
        stream = rest;
    }
    count
}

/// A command is an array of bulk strings.
fn command_length(stream: &[u8]) -> Option<usize> {
    (stream.first() == Some(&b'*')).then(|| reply_length(stream))?
}

fn reply_length(stream: &[u8]) -> Option<usize> {
    let line = stream.iter().position(|byte| *byte == b'\n')? + 1;
    let number = || {
        let digits = stream.get(1..line)?.trim_ascii_end();
        std::str::from_utf8(digits).ok()?.parse::<i64>().ok()
    };
    match stream.first()? {
        b'+' | b'-' | b':' => Some(line),
        b'$' => {
            // A negative length means null.
            let Ok(length) = usize::try_from(number()?) else {
                return Some(line);
            };
            let end = line.checked_add(length)?.checked_add(2)?;
            (end <= stream.len()).then_some(end)
        }
        b'*' => {
            let mut end = line;
            for _ in 0..number()?.max(0) {
                end += reply_length(stream.get(end..)?)?;
            }
            Some(end)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PING: &[u8] = b"*1\r\n$4\r\nPING\r\n";
    const EVAL: &[u8] = b"*3\r\n$4\r\neval\r\n$8\r\nreturn 1\r\n$1\r\n0\r\n";

    #[test]
    fn scripts_are_picked_out_of_whole_commands() {
        let piece = [PING, EVAL, PING, EVAL].concat();
        let found = scripts(&piece).unwrap();
        assert_eq!((found.count(), found.bytes()), (2, [EVAL, EVAL].concat()));
        assert!(scripts(PING).is_none());
        assert!(scripts(&piece[..piece.len() - 1]).is_none(), "cut short");
        assert!(scripts(b"GET / HTTP/1.0\r\n\r\n").is_none());
    }

    #[test]
    fn replies_are_counted_once_complete() {
        let stream = b"+OK\r\n:1\r\n*2\r\n$1\r\na\r\n*1\r\n:2\r\n$-1\r\n-ERR no\r\n$3\r\nab";
        assert_eq!(whole_replies(stream), 5);
        assert_eq!(whole_replies(b"*2\r\n:1\r\n"), 0);
        assert_eq!(whole_replies(b""), 0);
    }
}
