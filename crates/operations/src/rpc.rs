//! The form of requests and answers: JSON-RPC 2.0, one object a line.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Longest line of a request, in bytes.
pub(crate) const MAX_REQUEST_BYTES: u64 = 64 << 10;

/// A request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) jsonrpc: String,
    pub(crate) id: Value,
    pub(crate) method: String,
    #[serde(default)]
    pub(crate) params: Value,
}

/// An answer: a result or an error.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Answer {
    pub(crate) jsonrpc: String,
    pub(crate) id: Value,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) result: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<Failure>,
}

/// A message without a request of its own (JSON-RPC 2.0 §4.1).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Notification {
    pub(crate) jsonrpc: String,
    pub(crate) method: String,
    pub(crate) params: Value,
}

impl Notification {
    /// A notification with these parameters.
    pub(crate) fn of(method: &str, params: &impl Serialize) -> serde_json::Result<Notification> {
        let params = serde_json::to_value(params)?;
        Ok(Notification { jsonrpc: "2.0".to_owned(), method: method.to_owned(), params })
    }
}

/// Why there is no result (JSON-RPC 2.0 §5.1).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    pub(crate) code: i32,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) const NO_REQUEST: i32 = -32600;
    pub(crate) const NO_METHOD: i32 = -32601;
    pub(crate) const BAD_PARAMS: i32 = -32602;
    /// The request is valid, but cannot be carried out.
    pub(crate) const FAILED: i32 = -32000;

    pub(crate) fn new(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }
}

/// An answer to a request that was not read.
pub(crate) fn refusal(failure: Failure) -> Answer {
    Answer { jsonrpc: "2.0".to_owned(), id: Value::Null, result: None, error: Some(failure) }
}

/// Answers a line, which should be a request.
pub(crate) fn answer(
    line: &str,
    carry_out: impl FnOnce(&str, &Value) -> Result<Value, Failure>,
) -> Answer {
    let request: Request = match serde_json::from_str(line) {
        Ok(request) => request,
        Err(error) => {
            let message = format!("not a JSON-RPC request: {error}");
            return refusal(Failure::new(Failure::NO_REQUEST, message));
        }
    };
    let (result, error) = match carry_out(&request.method, &request.params) {
        Ok(result) => (Some(result), None),
        Err(failure) => (None, Some(failure)),
    };
    Answer { jsonrpc: "2.0".to_owned(), id: request.id, result, error }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn answers_carry_the_number_of_their_request() {
        let line = r#"{"jsonrpc":"2.0","id":7,"method":"double","params":{"of":21}}"#;
        let good = answer(line, |method, params| {
            assert_eq!(method, "double");
            Ok((params["of"].as_u64().expect("a number") * 2).into())
        });
        let text = serde_json::to_string(&good).expect("JSON");
        assert_eq!(text, r#"{"jsonrpc":"2.0","id":7,"result":42}"#);
        let bad = answer(line, |_, _| Err(Failure::new(Failure::NO_METHOD, "no such method")));
        assert_eq!((&bad.id, bad.error.expect("an error").code), (&7.into(), -32601));
        let none = answer("{", |_, _| unreachable!("nothing was asked"));
        assert!(none.error.expect("an error").message.contains("not a JSON-RPC request"));
    }

    proptest! {
        #[test]
        fn any_line_is_answered(line: String) {
            let answer = answer(&line, |_, _| Ok(Value::Null));
            prop_assert!(answer.error.is_some());
        }
    }
}
