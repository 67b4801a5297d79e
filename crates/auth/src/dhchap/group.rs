//! Diffie-Hellman groups (NVMe Base 2.0 §8.13.5.2; RFC 7919).

use super::primes;
use crate::error::{GroupValueError, RandomError};
use crate::secret::Secret;
use crypto_bigint::modular::{BoxedMontyForm, BoxedMontyParams};
use crypto_bigint::{BoxedUint, Odd};
use std::fmt;
use std::sync::OnceLock;
use zeroize::Zeroizing;

/// The generator of each group (RFC 7919 §A).
const GENERATOR: u8 = 2;

/// A group, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Group {
    /// No Diffie-Hellman exchange: responses depend on the challenges alone.
    Null,
    /// ffdhe2048, number 1 (RFC 7919 §A.1).
    Ffdhe2048,
    /// ffdhe3072, number 2 (RFC 7919 §A.2).
    Ffdhe3072,
    /// ffdhe4096, number 3 (RFC 7919 §A.3).
    Ffdhe4096,
    /// ffdhe6144, number 4 (RFC 7919 §A.4).
    Ffdhe6144,
    /// ffdhe8192, number 5 (RFC 7919 §A.5).
    Ffdhe8192,
}

impl Group {
    /// All of them, by number.
    pub const ALL: [Self; 6] = [
        Self::Null,
        Self::Ffdhe2048,
        Self::Ffdhe3072,
        Self::Ffdhe4096,
        Self::Ffdhe6144,
        Self::Ffdhe8192,
    ];

    /// Its number, from 0 to 5.
    #[must_use]
    pub const fn id(self) -> u8 {
        self as u8
    }

    /// The group with this number.
    #[must_use]
    pub fn from_id(id: u8) -> Option<Self> {
        Self::ALL.get(usize::from(id)).copied()
    }

    /// Length of a public value and of a shared secret in bytes: the prime's length; 0 without a group.
    #[must_use]
    pub const fn value_bytes(self) -> usize {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 256,
            Self::Ffdhe3072 => 384,
            Self::Ffdhe4096 => 512,
            Self::Ffdhe6144 => 768,
            Self::Ffdhe8192 => 1024,
        }
    }

    /// Length of a secret exponent in bits: as short as RFC 7919 allows (§5.2, §A), which makes a power 9 to 20 times
    /// as fast.
    const fn exponent_bits(self) -> u32 {
        match self {
            Self::Null => 0,
            Self::Ffdhe2048 => 225,
            Self::Ffdhe3072 => 275,
            Self::Ffdhe4096 => 325,
            Self::Ffdhe6144 => 375,
            Self::Ffdhe8192 => 400,
        }
    }

    /// Estimated time of a power on a server core of 3.5 GHz, in microseconds: a few hundred products of such numbers.
    pub(super) const fn power_us(self) -> u64 {
        let words = self.value_bytes() as u64 / 8;
        words * words * self.exponent_bits() as u64 / 460
    }

    /// The words of the prime, in big-endian order; none without a group.
    const fn prime(self) -> &'static [u64] {
        match self {
            Self::Null => &[],
            Self::Ffdhe2048 => &primes::FFDHE2048,
            Self::Ffdhe3072 => &primes::FFDHE3072,
            Self::Ffdhe4096 => &primes::FFDHE4096,
            Self::Ffdhe6144 => &primes::FFDHE6144,
            Self::Ffdhe8192 => &primes::FFDHE8192,
        }
    }

    /// Precomputed parameters for calculations modulo the prime: made at the first use, since that takes a while.
    fn modulus(self) -> Option<&'static BoxedMontyParams> {
        static MADE: [OnceLock<Option<BoxedMontyParams>>; 6] = [const { OnceLock::new() }; 6];
        MADE[usize::from(self.id())]
            .get_or_init(|| {
                let bytes: Vec<u8> =
                    self.prime().iter().flat_map(|word| word.to_be_bytes()).collect();
                let prime = BoxedUint::from_be_slice_vartime(&bytes);
                Odd::new(prime).into_option().map(BoxedMontyParams::new_vartime)
            })
            .as_ref()
    }
}

impl fmt::Display for Group {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Null => "no Diffie-Hellman group",
            Self::Ffdhe2048 => "ffdhe2048",
            Self::Ffdhe3072 => "ffdhe3072",
            Self::Ffdhe4096 => "ffdhe4096",
            Self::Ffdhe6144 => "ffdhe6144",
            Self::Ffdhe8192 => "ffdhe8192",
        })
    }
}

/// The secret exponent of one side, to be used once, and its public value.
pub struct KeyPair {
    group: Group,
    /// Below 2^[`Group::exponent_bits`].
    exponent: Zeroizing<BoxedUint>,
    value: Vec<u8>,
}

/// `base` to the power of `exponent`, modulo the prime of `group`, padded to its length. The time depends on the group
/// alone.
fn power(
    group: Group,
    modulus: &BoxedMontyParams,
    base: BoxedUint,
    exponent: &BoxedUint,
) -> Secret {
    let base = Zeroizing::new(BoxedMontyForm::new(base, modulus));
    let power = Zeroizing::new(base.pow_bounded_exp(exponent, group.exponent_bits()));
    let number = Zeroizing::new(power.retrieve());
    Secret::new(number.to_be_bytes().into_vec())
}

impl KeyPair {
    /// A new random exponent, and its public value. That takes 0.5 to 14 ms, depending on the group; without a group
    /// there is nothing to do.
    ///
    /// # Errors
    /// The operating system gives no random bytes.
    pub fn generate(group: Group) -> Result<Self, RandomError> {
        let bits = group.exponent_bits();
        let exponent = Secret::random(bits.div_ceil(8) as usize)?;
        Ok(Self::from_exponent(group, &exponent))
    }

    /// The pair of an exponent, whose low bits are used.
    pub(crate) fn from_exponent(group: Group, exponent: &Secret) -> Self {
        let bits = group.exponent_bits();
        let Some(modulus) = group.modulus() else {
            return Self { group, exponent: Zeroizing::new(BoxedUint::zero()), value: Vec::new() };
        };
        let exponent =
            BoxedUint::from_be_slice_truncated(exponent.expose(), bits.next_multiple_of(64));
        let exponent = Zeroizing::new(exponent);
        let base = BoxedUint::from_be_slice_truncated(&[GENERATOR], modulus.bits_precision());
        let value = power(group, modulus, base, &exponent).expose().to_vec();
        Self { group, exponent, value }
    }

    /// The group.
    #[must_use]
    pub const fn group(&self) -> Group {
        self.group
    }

    /// The public value g^x, big-endian, [`Group::value_bytes`] long.
    #[must_use]
    pub fn value(&self) -> &[u8] {
        &self.value
    }

    /// The secret g^xy shared with the side whose public value is `theirs`, big-endian and padded to
    /// [`Group::value_bytes`]; none without a group. That takes as long as [`generate`](Self::generate).
    ///
    /// # Errors
    /// The value has another length than the group's, or is at most 1 or at least p − 1.
    pub fn shared_secret(&self, theirs: &[u8]) -> Result<Option<Secret>, GroupValueError> {
        let needed_bytes = self.group.value_bytes();
        if theirs.len() != needed_bytes {
            return Err(GroupValueError::Length { needed_bytes, found_bytes: theirs.len() });
        }
        let Some(modulus) = self.group.modulus() else {
            return Ok(None);
        };
        let base = BoxedUint::from_be_slice_vartime(theirs);
        let one = BoxedUint::one();
        let largest = modulus.modulus().as_ref() - &one;
        if base <= one || base >= largest {
            return Err(GroupValueError::Range);
        }
        Ok(Some(power(self.group, modulus, base, &self.exponent)))
    }
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyPair({})", self.group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::Hash;
    use crate::vectors::hex;

    const GROUPS: [Group; 5] =
        [Group::Ffdhe2048, Group::Ffdhe3072, Group::Ffdhe4096, Group::Ffdhe6144, Group::Ffdhe8192];

    /// 2^30 e with `fraction_words` words of 32 bits after the point: the sum of 2^30 / n!.
    fn e_times_2_30(fraction_words: usize) -> Vec<u32> {
        let mut term = vec![0_u32; fraction_words + 3];
        term[0] = 1 << 30;
        let mut sum = term.clone();
        for n in 1_u64.. {
            let mut rest = 0;
            for word in &mut term {
                let value = rest << 32 | u64::from(*word);
                *word = (value / n) as u32;
                rest = value % n;
            }
            if term.iter().all(|&word| word == 0) {
                break;
            }
            let mut carry = 0;
            for (to, from) in sum.iter_mut().zip(&term).rev() {
                let value = u64::from(*to) + u64::from(*from) + carry;
                *to = value as u32;
                carry = value >> 32;
            }
        }
        sum.truncate(fraction_words + 1);
        sum
    }

    #[test]
    fn primes_are_those_of_rfc_7919() {
        let numbers = [560_316, 2_625_351, 5_736_041, 15_705_020, 10_965_728];
        for (group, x) in GROUPS.into_iter().zip(numbers) {
            let bits = group.value_bytes() * 8;
            let mut middle = e_times_2_30((bits - 160) / 32);
            let mut carry = x - 1;
            for word in middle.iter_mut().rev() {
                let value = u64::from(*word) + carry;
                *word = value as u32;
                carry = value >> 32;
            }
            let expected = [&[u32::MAX; 2][..], &middle, &[u32::MAX; 2]].concat();
            let found = group.prime().iter().flat_map(|&word| [(word >> 32) as u32, word as u32]);
            assert_eq!(found.collect::<Vec<u32>>(), expected, "{group}");
        }
    }

    #[test]
    fn powers_match_another_implementation() {
        // x is the low bits of FFFEFDFC…, as many as the group's exponents have. SHA-256 of 2^x, and of 2^x to the
        // power of x.
        let expected = [
            (
                "906bb6e6ad6ce808c48abffff9dd579524aeb930d83ba2859e2b68b5c7878dbe",
                "5b008025fa1d3c0a9f3c24856e80bd4418a19d5628f220444fabe14e1cf7c241",
            ),
            (
                "ba24347075a20d7d6fa213f5b2e8644116c5a32e3c5c824b724bf8933d482906",
                "1f55e46de5561f1b79f0b4a6e21678269a83a30e99b347b7f53b4c7cfc0a74ad",
            ),
            (
                "60cf6eb6602207022f68b4bebc4f58123ad998d5e01888b790d6530931b51b5d",
                "eab88f34cc8934568d0154ae1ef3238a4c948e4412296a711191fe1aef48de40",
            ),
            (
                "12b37f29a66c9cb2757da9c090655146b3b44140f597ec8e61b094dc03d65003",
                "488c67e6541af10f9dc03930cc723d247b6a6eb1d9e9d9b4421f7d153ed6b985",
            ),
            (
                "6749e0a359b899c95f1c6c340da619d7edb1a4d22f3080059481c8ab80e4cff9",
                "a737ff7e16173adbff490396643bbb17a805b258d9aa77ebdea6f0eb1df6a065",
            ),
        ];
        for (group, (value, shared)) in GROUPS.into_iter().zip(expected) {
            let length = group.exponent_bits().div_ceil(8) as u8;
            let pair = KeyPair::from_exponent(
                group,
                &Secret::new((0..length).map(|byte| !byte).collect()),
            );
            assert_eq!(pair.value().len(), group.value_bytes());
            assert_eq!(Hash::Sha256.digest(pair.value()).expose(), hex(value), "{group}");
            let found = pair.shared_secret(pair.value()).unwrap().unwrap();
            assert_eq!(Hash::Sha256.digest(found.expose()).expose(), hex(shared), "{group}");
        }
    }

    #[test]
    fn both_sides_share_a_secret() {
        for group in GROUPS {
            let (a, b) = (KeyPair::generate(group).unwrap(), KeyPair::generate(group).unwrap());
            let shared = a.shared_secret(b.value()).unwrap().unwrap();
            assert_eq!(shared.length_bytes(), group.value_bytes());
            assert_eq!(b.shared_secret(a.value()), Ok(Some(shared)));
            assert_eq!(Group::from_id(group.id()), Some(group));
        }
        let none = KeyPair::generate(Group::Null).unwrap();
        assert_eq!((none.value(), none.shared_secret(&[])), (&[][..], Ok(None)));
        assert!(none.shared_secret(&[2]).is_err());
        assert_eq!((Group::from_id(0), Group::from_id(6)), (Some(Group::Null), None));
    }

    /// The prime of `group` plus `change` in its last byte, which is FFh.
    fn near_prime(group: Group, change: i8) -> Vec<u8> {
        let mut bytes: Vec<u8> = group.prime().iter().flat_map(|word| word.to_be_bytes()).collect();
        let last = bytes.last_mut().unwrap();
        *last = last.wrapping_add_signed(change);
        bytes
    }

    #[test]
    fn values_that_reveal_the_secret_are_refused() {
        let group = Group::Ffdhe2048;
        let pair = KeyPair::generate(group).unwrap();
        let small = |value: u8| [&[0; 255][..], &[value]].concat();
        for bad in
            [small(0), small(1), near_prime(group, -1), near_prime(group, 0), vec![0xFF; 256]]
        {
            assert_eq!(pair.shared_secret(&bad), Err(GroupValueError::Range));
        }
        for good in [small(2), near_prime(group, -2)] {
            assert!(pair.shared_secret(&good).is_ok());
        }
        for length in [0, 1, 255, 257, 384] {
            let error = GroupValueError::Length { needed_bytes: 256, found_bytes: length };
            assert_eq!(pair.shared_secret(&vec![3; length]), Err(error));
        }
    }
}
