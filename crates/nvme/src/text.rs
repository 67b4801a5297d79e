//! Fixed-size text fields: space-padded ASCII and zero-padded UTF-8.

use crate::bytes::Field;
use std::fmt;

macro_rules! text_field {
    ($(#[$meta:meta])* $name:ident, $pad:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq)]
        pub struct $name<const N: usize>([u8; N]);

        impl<const N: usize> $name<N> {
            /// Pads `text` to the field, or cuts it at a character boundary.
            #[must_use]
            pub fn new(text: &str) -> Self {
                let mut length = text.len().min(N);
                while !text.is_char_boundary(length) {
                    length -= 1;
                }
                let mut bytes = [$pad; N];
                for (to, from) in bytes.iter_mut().zip(&text.as_bytes()[..length]) {
                    *to = *from;
                }
                Self(bytes)
            }

            /// The bytes of the field, padding included.
            #[must_use]
            pub const fn bytes(&self) -> &[u8; N] {
                &self.0
            }
        }

        impl<const N: usize> Default for $name<N> {
            fn default() -> Self {
                Self([$pad; N])
            }
        }

        impl<const N: usize> From<&str> for $name<N> {
            fn from(text: &str) -> Self {
                Self::new(text)
            }
        }

        impl<const N: usize> From<[u8; N]> for $name<N> {
            fn from(bytes: [u8; N]) -> Self {
                Self(bytes)
            }
        }

        impl<const N: usize> fmt::Debug for $name<N> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", self.to_string())
            }
        }

        impl<const N: usize> Field for $name<N> {
            const BYTES: usize = N;
            fn get(from: &[u8], at: usize) -> Self {
                Self(<[u8; N]>::get(from, at))
            }
            fn put(&self, to: &mut [u8], at: usize) {
                self.0.put(to, at);
            }
        }
    };
}

text_field! {
    /// ASCII text padded with spaces (NVMe Base 2.0 §5.17.2.1, SN). `to_string` gives the text without its padding.
    /// Bytes that are not UTF-8, and characters that [must not reach a terminal](is_unprintable), are shown as U+FFFD.
    SpacePadded, b' '
}
text_field! {
    /// UTF-8 text padded with zeroes, such as an NQN (NVMe Base 2.0 §4.5). `to_string` gives the text before the first
    /// zero. Bytes that are not UTF-8, and characters that [must not reach a terminal](is_unprintable), are shown as
    /// U+FFFD.
    NulPadded, 0
}

impl<const N: usize> fmt::Display for SpacePadded<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = String::from_utf8_lossy(&self.0);
        write_printable(f, text.trim_end_matches([' ', '\0']))
    }
}

impl<const N: usize> fmt::Display for NulPadded<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = self.0.split(|&byte| byte == 0).next().unwrap_or(&[]);
        write_printable(f, &String::from_utf8_lossy(text))
    }
}

fn write_printable(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    if text.contains(is_unprintable) {
        return f.write_str(&text.replace(is_unprintable, "\u{fffd}"));
    }
    f.write_str(text)
}

/// Whether a character of a peer's text must not reach a log or a terminal: a control character, or one that ends a
/// line, changes the direction of writing, or shows nothing but is no space. Combining marks that show something may.
#[must_use]
pub fn is_unprintable(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}')
        || matches!(c, '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}')
        || matches!(c, '\u{2060}'..='\u{206f}' | '\u{2800}' | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{feff}')
        || matches!(c, '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{1bca0}'..='\u{1bca3}')
        || matches!(c, '\u{1d173}'..='\u{1d17a}' | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use super::{NulPadded, SpacePadded, is_unprintable};

    #[test]
    fn fields_are_shown_without_control_characters() {
        let text = "a\u{1b}]0;b\u{202e}ä";
        let shown = "a\u{fffd}]0;b\u{fffd}ä";
        assert_eq!(NulPadded::<32>::new(text).to_string(), shown);
        assert_eq!(SpacePadded::<32>::new(text).to_string(), shown);
        assert_eq!(SpacePadded([0; 4]).to_string(), "");
    }

    #[test]
    fn misleading_characters_are_told_from_text_of_any_language() {
        for lies in
            ["\u{202e}gpj", "a\u{2028}b", "\u{feff}", "a\tb", "a\u{200b}b", "\u{7f}", "\u{85}"]
        {
            assert!(lies.contains(is_unprintable), "{lies:?}");
        }
        let invisible = "\u{34f}\u{115f}\u{1160}\u{17b4}\u{17b5}\u{180b}\u{180f}\u{2800}\u{3164}\
            \u{fe00}\u{fe0f}\u{ffa0}\u{1bca0}\u{1bca3}\u{1d173}\u{1d17a}\u{e0000}\u{e0100}\u{e0fff}";
        assert_eq!(invisible.chars().find(|c| !is_unprintable(*c)), None);
        assert!(!"nqn.2024-01.org.例:größe é ü_β".contains(is_unprintable));
    }
}
