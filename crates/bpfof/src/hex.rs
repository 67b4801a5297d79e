//! Bytes as hexadecimal digits, two for each byte.

pub(crate) fn encode(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// None unless the text is an even number of digits.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let digit = |byte: u8| (byte as char).to_digit(16);
    let byte = |[high, low]: &[u8; 2]| Some((digit(*high)? << 4 | digit(*low)?) as u8);
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_written_in_pairs_of_digits() {
        assert_eq!(decode("00fFa0"), Some(vec![0, 255, 160]));
        assert_eq!(encode(&[0, 255, 160]), "00ffa0");
        assert_eq!(decode(""), Some(Vec::new()));
        for wrong in ["0", "zz", "0x00", "é0", "é"] {
            assert_eq!(decode(wrong), None, "{wrong}");
        }
    }
}
