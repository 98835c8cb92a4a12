//! The chart's templates by gtmpl-ng, with those of Helm's functions that they use.

use std::fs;

use gtmpl_ng::{self as gtmpl, Func, FuncError};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::chart::chart;

/// What templates see of a value.
fn of_template(value: &Value) -> gtmpl::Value {
    match value {
        Value::Null => gtmpl::Value::Nil,
        Value::Bool(is) => (*is).into(),
        Value::Number(number) => number.as_i64().unwrap().into(),
        Value::String(text) => text.as_str().into(),
        Value::Array(all) => all.iter().map(of_template).collect::<Vec<_>>().into(),
        Value::Object(all) => {
            let pairs = all
                .iter()
                .map(|(key, value)| (key.clone(), of_template(value)));
            gtmpl::Value::Map(pairs.collect())
        }
    }
}

/// The same, back.
fn of_json(value: &gtmpl::Value) -> Value {
    match value {
        gtmpl::Value::Bool(is) => json!(is),
        gtmpl::Value::Number(number) => json!(number.as_i64().unwrap()),
        gtmpl::Value::String(text) => json!(text),
        gtmpl::Value::Array(all) => all.iter().map(of_json).collect(),
        gtmpl::Value::Map(all) | gtmpl::Value::Object(all) => {
            let pairs = all.iter().map(|(key, value)| (key.clone(), of_json(value)));
            pairs.collect::<serde_json::Map<_, _>>().into()
        }
        gtmpl::Value::Nil | gtmpl::Value::NoValue => Value::Null,
        other => panic!("{other:?} has no JSON"),
    }
}

/// JSON, which is YAML.
fn to_json(args: &[gtmpl::Value]) -> Result<gtmpl::Value, FuncError> {
    Ok(of_json(&args[0]).to_string().into())
}

fn nindent(args: &[gtmpl::Value]) -> Result<gtmpl::Value, FuncError> {
    let width = of_json(&args[0]).as_u64().unwrap();
    let indent = format!("\n{}", " ".repeat(usize::try_from(width).unwrap()));
    let text = args[1].to_string();
    Ok(format!("{indent}{}", text.replace('\n', &indent)).into())
}

fn sha256sum(args: &[gtmpl::Value]) -> Result<gtmpl::Value, FuncError> {
    let digest = Sha256::digest(args[0].to_string());
    let bytes = digest.iter().map(|byte| format!("{byte:02x}"));
    Ok(bytes.collect::<String>().into())
}

/// Keys, the value where they lead nowhere, and the map.
fn dig(args: &[gtmpl::Value]) -> Result<gtmpl::Value, FuncError> {
    let [keys @ .., default, map] = args else {
        return Err(FuncError::Generic(
            "dig takes keys, a value and a map".to_owned(),
        ));
    };
    let keys = keys.iter().map(ToString::to_string);
    let found = keys.fold(of_json(map), |map, key| map[key].clone());
    Ok(match found {
        Value::Null => default.clone(),
        found => of_template(&found),
    })
}

fn fail(args: &[gtmpl::Value]) -> Result<gtmpl::Value, FuncError> {
    Err(FuncError::Generic(args[0].to_string()))
}

/// `.Files.Get`, which is a method with an argument in Helm.
fn file(args: &[gtmpl::Value]) -> Result<gtmpl::Value, FuncError> {
    let text = fs::read_to_string(chart().join(args[0].to_string()));
    Ok(text.unwrap().into())
}

/// One template, with the values of a release in a namespace. The error is what the engine says, or the template by
/// `fail`.
pub(crate) fn render(template: &str, values: &Value, namespace: &str) -> Result<String, String> {
    let mut one = gtmpl::Template::default();
    one.add_funcs(&[
        ("toYaml", to_json as Func),
        ("toJson", to_json),
        ("nindent", nindent),
        ("sha256sum", sha256sum),
        ("dig", dig),
        ("fail", fail),
        ("file", file),
    ]);
    let template = template.replace(".Files.Get", "file");
    one.parse(template).map_err(|e| e.to_string())?;
    let data = [
        ("Values".to_owned(), of_template(values)),
        (
            "Release".to_owned(),
            of_template(&json!({"Namespace": namespace})),
        ),
    ];
    let data = gtmpl::Context::from(gtmpl::Value::Map(data.into()));
    one.render(&data).map_err(|e| e.to_string())
}
