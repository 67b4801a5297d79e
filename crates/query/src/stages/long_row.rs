//! Rows of text that do not fit into an answer of a stage. They are read here, and answered as the stage would.

use super::{Program, Told};
use crate::infer::fields;
use crate::order_form;
use crate::plan::{Format, Kind};
use crate::wire::Writer;

impl Program {
    /// The body that the rows stage would answer for the row in this line, which has passed the stages before it; None
    /// if another stage reduces, or the format is not text.
    pub(crate) fn body_of(&self, format: &Format, line: &[u8]) -> Option<Vec<u8>> {
        let (Told::Rows { answered, .. }, Format::Csv { delimiter, nulls, .. }) =
            (&self.told, format)
        else {
            return None;
        };
        let fields = fields(line, *delimiter)?;
        let mut to = Writer::default();
        // One row, and a size that is not used.
        to.u32(1).u32(0);
        for place in answered {
            let field = fields.get(self.columns[*place])?;
            let (kind, nullable) = (self.kinds[*place], self.nullable[*place]);
            if kind == Kind::Utf8 {
                to.u16(u16::try_from(field.len()).ok()?).bytes(field);
                continue;
            }
            let text = std::str::from_utf8(field).ok()?.trim_matches([' ', '\t']);
            let number = number(kind, text);
            if number.is_none() && !nulls.iter().any(|null| null == text) {
                return None;
            }
            if nullable {
                to.u8(u8::from(number.is_some()));
            }
            if let Some(number) = number {
                to.u64(number);
            }
        }
        Some(to.into_vec())
    }
}

/// Parses a number into order form.
fn number(kind: Kind, text: &str) -> Option<u64> {
    if kind.is_float() {
        let number = text.parse().ok().filter(|number: &f64| !number.is_nan());
        return number.map(order_form::of_float);
    }
    text.parse().ok().map(|number| order_form::of_int(kind, number))
}
