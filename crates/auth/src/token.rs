//! Slot tokens: 256 random bits that open one slot once (LOCAL-03).

use std::str::FromStr;

use crate::Secret;

const PREFIX: &str = "grt_";
pub(crate) const ALPHABET: base32::Alphabet = base32::Alphabet::Rfc4648Lower { padding: false };

/// A one-shot slot token: `grt_`, base32 of 32 random bytes, and a check character that catches a
/// mistyped one before it is sent.
#[derive(Clone, PartialEq, Eq)]
pub struct SlotToken(Secret);

impl SlotToken {
    /// The token of these random bytes.
    pub fn from_random(bytes: [u8; 32]) -> Self {
        let body = base32::encode(ALPHABET, &bytes);
        Self(Secret::new(format!("{PREFIX}{body}{}", check(&body))))
    }
    /// The token's text.
    pub fn expose(&self) -> &str {
        self.0.expose()
    }
}

impl FromStr for SlotToken {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let body = text
            .strip_prefix(PREFIX)
            .ok_or("a token begins with grt_")?;
        let (body, last) = body
            .split_at_checked(52)
            .ok_or("a token is 57 characters long")?;
        let whole = last.len() == 1
            && base32::decode(ALPHABET, body).is_some_and(|bytes| bytes.len() == 32)
            && last.chars().eq([check(body)]);
        if whole {
            Ok(Self(Secret::new(text)))
        } else {
            Err("the token is mistyped: its check character does not fit")
        }
    }
}

pub(crate) fn check(body: &str) -> char {
    let sum = body
        .bytes()
        .zip(1u32..)
        .fold(0, |sum, (byte, place)| (sum + u32::from(byte) * place) % 31);
    char::from(b"abcdefghijklmnopqrstuvwxyz23456"[sum as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    // spec: LOCAL-03
    #[test]
    fn a_token_is_256_bits_in_base32_between_its_mark_and_a_check_character() {
        let bytes: [u8; 32] = std::array::from_fn(|i| i as u8 * 3);
        let token = SlotToken::from_random(bytes);
        let text = token.expose();
        let (body, last) = text.strip_prefix("grt_").unwrap().split_at(52);
        assert_eq!(base32::decode(ALPHABET, body).unwrap(), bytes);
        assert_eq!(last.len(), 1);
        assert!(
            text.bytes()
                .all(|it| it.is_ascii_alphanumeric() || it == b'_')
        );
    }

    #[test]
    fn a_token_reads_back_and_a_typing_slip_shows() {
        let token = SlotToken::from_random(std::array::from_fn(|i| i as u8 * 7));
        let text = token.expose().to_owned();
        assert!(text.parse::<SlotToken>().is_ok());
        let mut slip = text.clone().into_bytes();
        slip.swap(10, 11);
        assert!(
            std::str::from_utf8(&slip)
                .unwrap()
                .parse::<SlotToken>()
                .is_err()
        );
        assert!("grt_".parse::<SlotToken>().is_err());
        assert!(text[..56].parse::<SlotToken>().is_err());
    }
}
