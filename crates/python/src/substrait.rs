//! A reader of Substrait's extended expressions, as far as predicates need it: the messages of
//! `substrait/extended_expression.proto` and `algebra.proto` that pyarrow writes. Field numbers are theirs.
//! An unknown message is an error with a description, and pyarrow then applies the condition.

use std::collections::HashMap;

/// Maximum nesting of expressions. Deeper ones are left to pyarrow.
const DEPTH_MAX: usize = 200;

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expression {
    /// The column with this index.
    Column(usize),
    Literal(Literal),
    /// A function by its name.
    Call(String, Vec<Expression>),
    /// Whether a value is in a list.
    In(Box<Expression>, Vec<Literal>),
}

/// A literal.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Literal {
    Null,
    Boolean(bool),
    Integer(i128),
    Single(f32),
    Double(f64),
    Text(String),
}

/// The reason why a message cannot be read.
pub(crate) type Unknown = String;

/// A field of a message of Protocol Buffers.
#[derive(Clone, Copy, Debug)]
enum Field<'a> {
    Varint(u64),
    Fixed64([u8; 8]),
    Fixed32([u8; 4]),
    Bytes(&'a [u8]),
}

impl<'a> Field<'a> {
    fn bytes(self) -> Result<&'a [u8], Unknown> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(damaged()),
        }
    }

    fn varint(self) -> Result<u64, Unknown> {
        match self {
            Self::Varint(number) => Ok(number),
            _ => Err(damaged()),
        }
    }
}

fn damaged() -> Unknown {
    "the expression cannot be read".to_owned()
}

/// Reads the fields of a message one by one.
#[derive(Clone, Copy, Debug)]
struct Message<'a>(&'a [u8]);

impl<'a> Message<'a> {
    fn next(&mut self) -> Result<Option<(u64, Field<'a>)>, Unknown> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let field = match tag & 7 {
            0 => Field::Varint(self.varint()?),
            1 => Field::Fixed64(self.array()?),
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| damaged())?;
                Field::Bytes(self.take(length)?)
            }
            5 => Field::Fixed32(self.array()?),
            _ => return Err(damaged()),
        };
        Ok(Some((tag >> 3, field)))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], Unknown> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(damaged)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Unknown> {
        self.take(N)?.try_into().map_err(|_| damaged())
    }

    fn varint(&mut self) -> Result<u64, Unknown> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            number |= u64::from(byte & 127) << shift;
            if byte < 128 {
                return Ok(number);
            }
        }
        Err(damaged())
    }

    /// All values of one length-delimited field.
    fn all(mut self, wanted: u64) -> Result<Vec<&'a [u8]>, Unknown> {
        let mut found = Vec::new();
        while let Some((number, field)) = self.next()? {
            if number == wanted {
                found.push(field.bytes()?);
            }
        }
        Ok(found)
    }

    /// The last value of a field, or an empty one.
    fn one(self, wanted: u64) -> Result<&'a [u8], Unknown> {
        Ok(self.all(wanted)?.last().copied().unwrap_or(&[]))
    }

    /// The number of a field; 0 if it is missing.
    fn number(mut self, wanted: u64) -> Result<u64, Unknown> {
        let mut found = 0;
        while let Some((number, field)) = self.next()? {
            if number == wanted {
                found = field.varint()?;
            }
        }
        Ok(found)
    }
}

fn text(bytes: &[u8]) -> Result<String, Unknown> {
    str::from_utf8(bytes).map(str::to_owned).map_err(|_| damaged())
}

/// Parses the only expression of an `ExtendedExpression`.
pub(crate) fn parse(bytes: &[u8]) -> Result<Expression, Unknown> {
    let message = Message(bytes);
    let mut functions = HashMap::new();
    for declaration in message.all(2)? {
        // SimpleExtensionDeclaration.extension_function
        for function in Message(declaration).all(3)? {
            let function = Message(function);
            let name = text(function.one(3)?)?;
            // The types of arguments follow a colon.
            let name = name.split(':').next().unwrap_or_default().to_owned();
            functions.insert(function.number(2)?, name);
        }
    }
    match message.all(3)?[..] {
        // ExpressionReference.expression
        [reference] => expression(Message(reference).one(1)?, &functions, 0),
        _ => Err(damaged()),
    }
}

fn expression(
    bytes: &[u8],
    functions: &HashMap<u64, String>,
    depth: usize,
) -> Result<Expression, Unknown> {
    if depth > DEPTH_MAX {
        return Err("the expression is nested too deeply".to_owned());
    }
    let mut message = Message(bytes);
    let Some((number, field)) = message.next()? else { return Err(damaged()) };
    let inner = Message(field.bytes()?);
    match number {
        1 => Ok(Expression::Literal(literal(inner)?)),
        2 => column(inner),
        3 => {
            let anchor = inner.number(1)?;
            let name = functions.get(&anchor).ok_or_else(damaged)?.clone();
            let mut arguments = Vec::new();
            for argument in inner.all(4)? {
                // FunctionArgument.value
                arguments.push(expression(Message(argument).one(3)?, functions, depth + 1)?);
            }
            Ok(Expression::Call(name, arguments))
        }
        8 => {
            let value = expression(inner.one(1)?, functions, depth + 1)?;
            let mut options = Vec::new();
            for option in inner.all(2)? {
                match expression(option, functions, depth + 1)? {
                    Expression::Literal(literal) => options.push(literal),
                    _ => return Err("a list with values that are not literals".to_owned()),
                }
            }
            Ok(Expression::In(Box::new(value), options))
        }
        6 => Err("if_else is not pushed down".to_owned()),
        11 => Err("casts are not pushed down".to_owned()),
        _ => Err("stages do not support this kind of expression".to_owned()),
    }
}

/// `FieldReference.direct_reference.struct_field.field`
fn column(reference: Message<'_>) -> Result<Expression, Unknown> {
    let segment = Message(reference.one(1)?);
    let field = segment.all(2)?;
    let [field] = field[..] else { return Err("not a plain column".to_owned()) };
    if !Message(field).one(2)?.is_empty() {
        return Err("a nested column".to_owned());
    }
    let index = Message(field).number(1)?;
    Ok(Expression::Column(usize::try_from(index).map_err(|_| damaged())?))
}

fn literal(mut message: Message<'_>) -> Result<Literal, Unknown> {
    let mut found = None;
    while let Some((number, field)) = message.next()? {
        let value = match (number, field) {
            (1, Field::Varint(value)) => Literal::Boolean(value != 0),
            // i8, i16, i32, i64: two's complement of 64 bits.
            (2 | 3 | 5 | 7, Field::Varint(value)) => Literal::Integer(value.cast_signed().into()),
            (10, Field::Fixed32(bytes)) => Literal::Single(f32::from_le_bytes(bytes)),
            (11, Field::Fixed64(bytes)) => Literal::Double(f64::from_le_bytes(bytes)),
            (12, Field::Bytes(bytes)) => Literal::Text(text(bytes)?),
            (29, _) => Literal::Null,
            (33, Field::Bytes(bytes)) => unsigned(Message(bytes))?,
            // nullable, type_variation_reference
            (50 | 51, _) => continue,
            _ => return Err("a literal of a type that stages do not support".to_owned()),
        };
        found = Some(value);
    }
    found.ok_or_else(damaged)
}

/// Substrait has no unsigned integers. Arrow writes them as messages of its own type.
fn unsigned(message: Message<'_>) -> Result<Literal, Unknown> {
    // UserDefined.value is an Any: type_url, value.
    let any = Message(message.one(2)?);
    let url = any.one(1)?;
    if !url.ends_with(b"/google.protobuf.UInt64Value")
        && !url.ends_with(b"/google.protobuf.UInt32Value")
    {
        return Err("a literal of a type that stages do not support".to_owned());
    }
    Ok(Literal::Integer(Message(any.one(2)?).number(1)?.into()))
}
