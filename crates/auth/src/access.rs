//! Tokens of people and programs (SEC-02): random, shown once, kept as Argon2id hashes in a file of
//! lines.
//!
//! A token names its line, so that a call costs at most one hash, and the line remembers the token
//! that fitted, so that every further call costs none.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use argon2::Argon2;
use argon2::password_hash::phc::PasswordHash;
use argon2::password_hash::{PasswordHasher, PasswordVerifier};
use greenroom_types::Wall;
use sha2::{Digest, Sha256};

use crate::token::{ALPHABET, check};
use crate::{Principal, Role, Secret, random};

const PREFIX: &str = "gra_";
/// Characters of the part that names the line.
const ID: usize = 8;
/// Characters of the secret part.
const BODY: usize = 52;
/// Lines of a file; an installation has a handful.
const LINES_MAX: usize = 1_000;

/// A token of a person or program: `gra_`, the name of its line, `_`, base32 of 32 random bytes and
/// a check character. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct AccessToken {
    id: String,
    text: Secret,
}

/// A token as the Manager knows it.
pub struct TokenEntry {
    id: String,
    principal: Principal,
    hash: PasswordHash,
    /// SHA-256 of the token that fitted the hash.
    fitted: OnceLock<[u8; 32]>,
}

/// The tokens of an installation: one line each, `ID ROLE ENDS HASH NAME`, where ENDS is a time or
/// `never`. Empty lines and those that begin with `#` say nothing.
#[derive(Default)]
pub struct TokenFile(Vec<TokenEntry>);

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct TokenFileError {
    /// Its number, from 1.
    pub line: usize,
    /// What is wrong; never holds a hash.
    pub problem: String,
}

// === impl AccessToken ===

impl AccessToken {
    /// A fresh one.
    pub fn generate() -> Self {
        let id = base32::encode(ALPHABET, &random::<5>());
        let body = base32::encode(ALPHABET, &random::<32>());
        let text = format!("{PREFIX}{id}_{body}{}", check(&body));
        Self {
            id,
            text: Secret::new(text),
        }
    }

    /// The token's text.
    pub fn expose(&self) -> &str {
        self.text.expose()
    }

    /// The line that a Manager keeps of it.
    pub fn line(&self, role: Role, ends_at: Option<Wall>, name: &str) -> String {
        let hash: PasswordHash = Argon2::default()
            .hash_password_with_salt(self.expose().as_bytes(), &random::<16>())
            .expect("text and salt are of lengths that can be hashed");
        let ends = ends_at
            .and_then(|end| jiff::Timestamp::from_millisecond(end.0).ok())
            .map_or_else(|| "never".to_owned(), |end| end.to_string());
        format!("{} {role} {ends} {hash} {name}\n", self.id)
    }

    fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.expose()).into()
    }
}

impl FromStr for AccessToken {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let rest = text
            .strip_prefix(PREFIX)
            .ok_or("an access token begins with gra_")?;
        let (id, body) = rest
            .split_once('_')
            .filter(|(id, body)| id.len() == ID && body.len() == BODY + 1 && body.is_ascii())
            .ok_or("an access token is 66 characters long")?;
        let (body, last) = body.split_at(BODY);
        let whole = base32::decode(ALPHABET, body).is_some_and(|bytes| bytes.len() == 32)
            && last.chars().eq([check(body)]);
        if whole {
            Ok(Self {
                id: id.to_owned(),
                text: Secret::new(text),
            })
        } else {
            Err("the token is mistyped: its check character does not fit")
        }
    }
}

impl fmt::Debug for AccessToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AccessToken(***)")
    }
}

// === impl TokenEntry ===

impl TokenEntry {
    /// Who holds it.
    pub const fn principal(&self) -> &Principal {
        &self.principal
    }

    /// Whether it is known without hashing that this token fits; none: hashing must tell.
    pub fn fits_at_once(&self, token: &AccessToken) -> Option<bool> {
        self.fitted.get().map(|fitted| *fitted == token.digest())
    }

    /// Whether this token fits. Takes the time and memory of an Argon2id hash.
    pub fn fits(&self, token: &AccessToken) -> bool {
        if let Some(known) = self.fits_at_once(token) {
            return known;
        }
        let fits = Argon2::default()
            .verify_password(token.expose().as_bytes(), &self.hash)
            .is_ok();
        if fits {
            // Another call may have been first, with the same.
            let _ = self.fitted.set(token.digest());
        }
        fits
    }

    fn read(line: &str) -> Result<Self, String> {
        let mut words = line.splitn(5, char::is_whitespace);
        let mut next = |what: &str| {
            let word = words.next().filter(|word| !word.is_empty());
            word.ok_or_else(|| format!("{what} is missing; a line is ID ROLE ENDS HASH NAME"))
        };
        let id = next("the id")?;
        if id.len() != ID || !id.bytes().all(|byte| byte.is_ascii_alphanumeric()) {
            return Err(format!("{id:?} is no id; it has {ID} letters and digits"));
        }
        let role: Role = next("the role")?.parse()?;
        if role > Role::Admin {
            return Err(format!("no token may have the role {role}"));
        }
        let ends_at = match next("the end")? {
            "never" => None,
            text => {
                let end: jiff::Timestamp = text.parse().map_err(|_| {
                    format!("{text:?} is no end; write never or a time as 2030-01-31T00:00:00Z")
                })?;
                Some(Wall(end.as_millisecond()))
            }
        };
        let hash = next("the hash")?;
        let hash = PasswordHash::new(hash)
            .ok()
            .filter(|hash| hash.algorithm.as_str() == "argon2id")
            .ok_or("the hash is none of Argon2id")?;
        let name = next("the name")?.trim();
        if name.is_empty() || name.len() > 64 || name.chars().any(char::is_control) {
            return Err("the name must have 1 to 64 characters".to_owned());
        }
        Ok(Self {
            id: id.to_owned(),
            principal: Principal {
                name: name.to_owned(),
                role,
                ends_at,
            },
            hash,
            fitted: OnceLock::new(),
        })
    }
}

impl fmt::Debug for TokenEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TokenEntry({}, {:?})", self.id, self.principal)
    }
}

// === impl TokenFile ===

impl TokenFile {
    /// The tokens of a file's text.
    ///
    /// # Errors
    /// A line is none, or names an id for the second time.
    pub fn read(text: &str) -> Result<Self, TokenFileError> {
        let mut entries: Vec<TokenEntry> = Vec::new();
        for (line, text) in (1..).zip(text.lines()) {
            let fault = |problem: String| TokenFileError { line, problem };
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let entry = TokenEntry::read(text).map_err(fault)?;
            if entries.iter().any(|other| other.id == entry.id) {
                return Err(fault(format!("the id {} is there twice", entry.id)));
            }
            if entries.len() == LINES_MAX {
                return Err(fault(format!("at most {LINES_MAX} tokens are read")));
            }
            entries.push(entry);
        }
        Ok(Self(entries))
    }

    /// The line that a token names.
    pub fn entry(&self, token: &AccessToken) -> Option<&TokenEntry> {
        self.0.iter().find(|entry| entry.id == token.id)
    }

    /// Takes over which tokens fitted lines that stand unchanged, so that nothing is hashed anew.
    pub fn remember(&self, old: &Self) {
        for entry in &self.0 {
            let same = old
                .0
                .iter()
                .find(|it| it.id == entry.id && it.hash == entry.hash);
            if let Some(fitted) = same.and_then(|it| it.fitted.get()) {
                // It was just read, so nothing is there yet.
                let _ = entry.fitted.set(*fitted);
            }
        }
    }

    /// How many there are.
    pub const fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for TokenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.0).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: SEC-02
    #[test]
    fn a_token_is_kept_as_a_hash_and_opens_its_own_line_alone() {
        let (anna, ben) = (AccessToken::generate(), AccessToken::generate());
        let end = Wall(1_900_000_000_000);
        let text = format!(
            "# people\n\n{}{}",
            anna.line(Role::Admin, None, "anna b."),
            ben.line(Role::Viewer, Some(end), "ben"),
        );
        assert!(text.contains("$argon2id$"), "{text}");
        for token in [&anna, &ben] {
            assert!(!text.contains(token.expose()));
            assert!(!format!("{token:?}").contains(token.expose()));
        }
        let file = TokenFile::read(&text).unwrap();
        assert_eq!(file.len(), 2);
        let entry = file.entry(&anna).unwrap();
        assert_eq!(entry.principal().name, "anna b.");
        assert_eq!(entry.principal().role, Role::Admin);
        assert_eq!(entry.fits_at_once(&anna), None);
        assert!(!entry.fits(&ben));
        assert!(entry.fits(&anna));
        // From now on nothing needs to be hashed.
        assert_eq!(entry.fits_at_once(&anna), Some(true));
        assert_eq!(entry.fits_at_once(&ben), Some(false));
        let ben = file.entry(&ben).unwrap().principal();
        assert!(!ben.has_ended(Wall(end.0 - 1)));
        assert!(ben.has_ended(end));
        assert!(file.entry(&AccessToken::generate()).is_none());

        // Read anew, an unchanged line needs no hash; a changed one does.
        let changed = text.replacen("viewer", "operator", 1);
        let again = TokenFile::read(&changed).unwrap();
        again.remember(&file);
        assert_eq!(again.entry(&anna).unwrap().fits_at_once(&anna), Some(true));
        let other =
            TokenFile::read(&AccessToken::generate().line(Role::Viewer, None, "x")).unwrap();
        other.remember(&file);
        assert!(other.entry(&anna).is_none());
    }

    #[test]
    fn a_token_reads_back_and_a_typing_slip_shows() {
        let token = AccessToken::generate();
        let text = token.expose().to_owned();
        assert_eq!(text.len(), 66);
        assert_eq!(text.parse::<AccessToken>().unwrap(), token);
        let mut slip = text.clone();
        slip.insert(20, 'a');
        for bad in [&text[..65], &slip, "", "gra_", "grt_x"] {
            assert!(bad.parse::<AccessToken>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_fault_in_the_file_is_told_by_its_line_without_the_hash() {
        let good = AccessToken::generate().line(Role::Viewer, None, "x");
        let words: Vec<&str> = good.trim().split(' ').collect();
        let with = |at: usize, word: &str| {
            let mut words = words.clone();
            words[at] = word;
            words.join(" ")
        };
        for (line, part) in [
            (with(0, "short"), "id"),
            (with(1, "root"), "root"),
            (with(1, "peer"), "peer"),
            (with(2, "tomorrow"), "tomorrow"),
            (with(3, "secret"), "hash"),
            (words[..4].join(" "), "the name is missing"),
            (good.trim().to_owned(), "twice"),
        ] {
            let error = TokenFile::read(&format!("{good}{line}\n")).unwrap_err();
            assert_eq!(error.line, 2);
            assert!(error.problem.contains(part), "{error}");
            assert!(!error.problem.contains("secret"), "{error}");
        }
    }
}
