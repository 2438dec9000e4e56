//! The static token file: one line per user.

use crate::auth::User;

/// A line of a token file that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("line {line} of the token file: {what}; a line is token,user,uid,\"group1,group2\"")]
pub struct ReadTokens {
    /// Which line, counted from one.
    pub line: usize,
    /// What is wrong with it; never the token itself.
    pub what: &'static str,
}

pub(super) fn parse(file: &str) -> Result<Vec<(String, User)>, ReadTokens> {
    let mut users = Vec::new();
    for (index, text) in file.lines().enumerate() {
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        let wrong = |what| ReadTokens { line: index + 1, what };
        let fields = split(text).ok_or_else(|| wrong("a quote is not closed"))?;
        let [token, name, uid, rest @ ..] = fields.as_slice() else {
            return Err(wrong("there are fewer than three fields"));
        };
        if token.is_empty() || name.is_empty() {
            return Err(wrong("the token or the user's name is empty"));
        }
        let groups = rest.first().map_or("", String::as_str).split(',').map(str::trim).filter(|g| !g.is_empty());
        let mut user = User::new(name.as_str(), groups);
        user.uid.clone_from(uid);
        users.push((token.clone(), user));
    }
    Ok(users)
}

/// The fields of one line of comma-separated values; nothing if a quote stays open.
fn split(line: &str) -> Option<Vec<String>> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            // Two quotes inside quotes stand for one.
            '"' if quoted && letters.peek() == Some(&'"') => {
                letters.next();
                fields.last_mut()?.push('"');
            }
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            other => fields.last_mut()?.push(other),
        }
    }
    (!quoted).then(|| fields.iter().map(|field| field.trim().to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_one_quoted_field() {
        let users = parse("# people\n\nt1,alice,1,\"dev,ops\"\nt2, bob ,2\n").unwrap();
        assert_eq!(users[0].1.groups, ["dev", "ops", "system:authenticated"]);
        assert_eq!((users[1].0.as_str(), users[1].1.name.as_str()), ("t2", "bob"));
    }

    #[test]
    fn a_bad_line_is_named_without_its_token() {
        for (file, line) in [("ok,a,1\nsecret,b", 2), ("secret,\"b,1", 1), (",a,1", 1)] {
            let error = parse(file).unwrap_err();
            assert_eq!(error.line, line);
            assert!(!error.to_string().contains("secret"));
        }
    }
}
