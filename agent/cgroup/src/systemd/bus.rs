//! systemd over D-Bus: through the system bus, or without one on systemd's own socket, which is for
//! root alone (as go-systemd's `dbus.NewWithContext` chooses, which the kubelet uses).

use std::{
    fmt,
    os::unix::net::UnixStream,
    sync::{Mutex, PoisonError, mpsc},
    time::Duration,
};

use serde::Serialize;
use zbus::{
    Connection, DBusError as _, DynamicType, Message, OwnedVariant, Variant, connection::Builder,
};

use super::{
    manager::{Manager, Operation, State, SystemdError},
    property::{Properties, Value},
};

/// systemd's own socket.
pub(super) const PRIVATE: &str = "/run/systemd/private";

const SERVICE: &str = "org.freedesktop.systemd1";
const OBJECT: &str = "/org/freedesktop/systemd1";
const MANAGER: &str = "org.freedesktop.systemd1.Manager";
const UNIT: &str = "org.freedesktop.systemd1.Unit";
const PROPERTIES: &str = "org.freedesktop.DBus.Properties";
/// A new job takes the place of one that contradicts it.
const REPLACE: &str = "replace";
/// How long an answer may take; systemd answers in milliseconds, also on a busy machine.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(25);

type Property<'a> = (&'static str, Variant<'a>);

/// A connection, made anew when it breaks: dbus-daemon may be restarted.
pub(super) struct Bus {
    connection: Mutex<Connection>,
}

impl fmt::Debug for Bus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bus").finish_non_exhaustive()
    }
}

impl Bus {
    pub(super) fn connect() -> Result<Self, SystemdError> {
        Ok(Self {
            connection: Mutex::new(connect()?),
        })
    }

    /// Calls a method of the manager.
    fn manage(
        &self,
        operation: Operation,
        unit: &str,
        method: &str,
        body: &(impl Serialize + DynamicType),
    ) -> Result<(), SystemdError> {
        self.call(operation, unit, OBJECT, MANAGER, method, body)
            .map(drop)
    }

    /// A property of an object.
    fn get(
        &self,
        unit: &str,
        object: &str,
        interface: &str,
        name: &str,
    ) -> Result<OwnedVariant, SystemdError> {
        let body = (interface, name);
        let answer = self.call(Operation::Read, unit, object, PROPERTIES, "Get", &body)?;
        answer
            .body()
            .deserialize()
            .map_err(|error| describe(Operation::Read, unit, &error))
    }

    /// Calls a method; once more on a new connection when this one is broken. Every call here may be
    /// made twice: what was done already is answered as such.
    fn call(
        &self,
        operation: Operation,
        unit: &str,
        object: &str,
        interface: &str,
        method: &str,
        body: &(impl Serialize + DynamicType),
    ) -> Result<Message, SystemdError> {
        let mut connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let call = |connection: &Connection| {
            let destination = connection.is_bus().then_some(SERVICE);
            zbus::block_on(connection.call_method(
                destination,
                object,
                Some(interface),
                method,
                body,
            ))
        };
        let failed = match call(&connection) {
            Ok(answer) => return Ok(answer),
            Err(error) => error,
        };
        if !is_broken(&failed) {
            return Err(describe(operation, unit, &failed));
        }
        tracing::debug!(error = %failed, "the connection to systemd broke: making a new one");
        *connection = connect()?;
        call(&connection).map_err(|error| describe(operation, unit, &error))
    }
}

impl Manager for Bus {
    fn version(&self) -> Result<u32, SystemdError> {
        let version = self.get("systemd", OBJECT, MANAGER, "Version")?;
        Ok(parse_version(text(&version)))
    }

    fn start_transient(&self, unit: &str, properties: &Properties) -> Result<(), SystemdError> {
        let auxiliary: [(&str, Vec<Property>); 0] = [];
        let body = (unit, REPLACE, variants(properties), auxiliary.as_slice());
        self.manage(Operation::Start, unit, "StartTransientUnit", &body)
    }

    fn start(&self, unit: &str) -> Result<(), SystemdError> {
        self.manage(Operation::Start, unit, "StartUnit", &(unit, REPLACE))
    }

    fn set_properties(&self, unit: &str, properties: &Properties) -> Result<(), SystemdError> {
        let until_reboot = true;
        let body = (unit, until_reboot, variants(properties));
        self.manage(Operation::Set, unit, "SetUnitProperties", &body)
    }

    fn stop(&self, unit: &str) -> Result<(), SystemdError> {
        self.manage(Operation::Stop, unit, "StopUnit", &(unit, REPLACE))
    }

    fn reset_failed(&self, unit: &str) -> Result<(), SystemdError> {
        self.manage(Operation::Stop, unit, "ResetFailedUnit", &(unit,))
    }

    fn state(&self, unit: &str) -> Result<State, SystemdError> {
        let state = self.get(unit, &object_path(unit), UNIT, "ActiveState")?;
        Ok(State::parse(text(&state)))
    }

    fn description(&self, unit: &str) -> Result<String, SystemdError> {
        let description = self.get(unit, &object_path(unit), UNIT, "Description")?;
        Ok(text(&description).to_owned())
    }

    fn has_job(&self, unit: &str) -> Result<bool, SystemdError> {
        let job = self.get(unit, &object_path(unit), UNIT, "Job")?;
        // Number and object; 0 is none.
        Ok(match &*job {
            Variant::Structure(job) => !matches!(job.fields().first(), Some(Variant::U32(0))),
            _ => false,
        })
    }
}

/// The handshake has no time limit of its own: behind a server that accepts and says nothing a thread
/// stays, and the caller goes on.
fn within<T: Send + 'static>(
    limit: Duration,
    connect: impl FnOnce() -> Result<T, SystemdError> + Send + 'static,
) -> Result<T, SystemdError> {
    let (tell, told) = mpsc::channel();
    let connecting = std::thread::Builder::new()
        .name("systemd".to_owned())
        .spawn(move || {
            // Too late, and dropped.
            let _ = tell.send(connect());
        });
    let failed = |problem: String| SystemdError::Unreachable {
        bus: problem.clone(),
        socket: problem,
    };
    connecting.map_err(|error| failed(error.to_string()))?;
    let silent = |_| Err(failed(format!("no answer within {limit:?}")));
    told.recv_timeout(limit).unwrap_or_else(silent)
}

fn connect() -> Result<Connection, SystemdError> {
    within(ANSWER_LIMIT, connect_now)
}

fn connect_now() -> Result<Connection, SystemdError> {
    let on_bus = zbus::block_on(Builder::system().method_timeout(ANSWER_LIMIT).build());
    let bus = match on_bus {
        Ok(connection) => return Ok(connection),
        Err(error) => error.to_string(),
    };
    let on_socket = UnixStream::connect(PRIVATE)
        .map_err(zbus::Error::from)
        .and_then(|stream| {
            let builder = Builder::unix_stream(stream).p2p();
            zbus::block_on(builder.method_timeout(ANSWER_LIMIT).build())
        });
    on_socket.map_err(|error| SystemdError::Unreachable {
        bus,
        socket: error.to_string(),
    })
}

fn variants(properties: &Properties) -> Vec<Property<'_>> {
    let properties = properties.iter();
    properties
        .map(|(name, value)| {
            let value = match value {
                Value::Number(number) => Variant::from(*number),
                Value::Flag(flag) => Variant::from(*flag),
                Value::Text(text) => Variant::from(text.as_str()),
                Value::List(list) => Variant::from(list.clone()),
            };
            (name, value)
        })
        .collect()
}

fn text<'a>(variant: &'a Variant<'_>) -> &'a str {
    match variant {
        Variant::Str(text) => text.as_str(),
        _ => "",
    }
}

/// The first number in `252.39-1~deb12u2` or `v257`; 0 when there is none.
fn parse_version(text: &str) -> u32 {
    let digits = text.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = digits
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(digits.len());
    digits[..end].parse().unwrap_or(0)
}

/// A unit's object: all but letters and digits are written as `_` and two hexadecimal digits, and so
/// is a digit at the start (`bus_label_escape`, systemd `src/libsystemd/sd-bus`).
fn object_path(unit: &str) -> String {
    let mut path = format!("{OBJECT}/unit/");
    for (at, byte) in unit.bytes().enumerate() {
        let plain = byte.is_ascii_alphabetic() || (at > 0 && byte.is_ascii_digit());
        if plain {
            path.push(char::from(byte));
        } else {
            path.push_str(&format!("_{byte:02x}"));
        }
    }
    path
}

/// Whether a new connection may help.
fn is_broken(error: &zbus::Error) -> bool {
    match error {
        zbus::Error::InputOutput(source) => source.kind() != std::io::ErrorKind::TimedOut,
        zbus::Error::FDO(error) => matches!(
            **error,
            zbus::fdo::Error::Disconnected(_)
                | zbus::fdo::Error::ServiceUnknown(_)
                | zbus::fdo::Error::NameHasNoOwner(_)
        ),
        _ => false,
    }
}

fn describe(operation: Operation, unit: &str, error: &zbus::Error) -> SystemdError {
    let (name, message) = match error {
        zbus::Error::MethodError(name, message, _) => {
            (name.to_string(), message.clone().unwrap_or_default())
        }
        zbus::Error::FDO(error) => (
            error.name().to_string(),
            error.description().unwrap_or_default().to_owned(),
        ),
        zbus::Error::InputOutput(source) if source.kind() == std::io::ErrorKind::TimedOut => {
            return SystemdError::TimedOut {
                operation,
                unit: unit.to_owned(),
                seconds: ANSWER_LIMIT.as_secs(),
            };
        }
        error => {
            return SystemdError::Broken {
                operation,
                unit: unit.to_owned(),
                message: error.to_string(),
            };
        }
    };
    answered(operation, unit.to_owned(), name, message)
}

/// Sorts systemd's answers by the name of the D-Bus error.
fn answered(operation: Operation, unit: String, name: String, message: String) -> SystemdError {
    match name.as_str() {
        "org.freedesktop.systemd1.UnitExists" => SystemdError::Exists { unit },
        "org.freedesktop.systemd1.NoSuchUnit" => SystemdError::NoUnit { unit },
        "org.freedesktop.DBus.Error.AccessDenied"
        | "org.freedesktop.DBus.Error.AuthFailed"
        | "org.freedesktop.DBus.Error.InteractiveAuthorizationRequired" => SystemdError::Denied {
            operation,
            unit,
            message,
        },
        _ => SystemdError::Refused {
            operation,
            unit,
            name,
            message,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bus_that_says_nothing_does_not_hold_up_the_caller() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bus");
        // Connections are taken into the backlog, and none is answered.
        let _silent = std::os::unix::net::UnixListener::bind(&path).unwrap();
        let stream = UnixStream::connect(&path).unwrap();
        let answer = within(Duration::from_millis(100), move || {
            let builder = Builder::unix_stream(stream).p2p();
            zbus::block_on(builder.build()).map_err(|error| SystemdError::Unreachable {
                bus: error.to_string(),
                socket: String::new(),
            })
        });
        let error = answer.err().map(|error| error.to_string());
        assert!(error.is_some_and(|e| e.contains("no answer within")));
    }

    #[test]
    fn versions_of_several_distributions() {
        for (text, want) in [
            ("252.39-1~deb12u2", 252),
            ("v257", 257),
            ("245.4-1.fc32", 245),
            ("239", 239),
            ("", 0),
        ] {
            assert_eq!(parse_version(text), want, "{text}");
        }
    }

    #[test]
    fn objects_of_units() {
        assert_eq!(
            object_path("kubepods-burstable-pod1_2.slice"),
            "/org/freedesktop/systemd1/unit/kubepods_2dburstable_2dpod1_5f2_2eslice"
        );
        assert_eq!(
            object_path("1.slice"),
            "/org/freedesktop/systemd1/unit/_31_2eslice"
        );
    }

    #[test]
    fn answers_are_told_apart_and_say_what_to_do() {
        let error = |name: &str| {
            answered(
                Operation::Start,
                "a.slice".to_owned(),
                name.to_owned(),
                "why".to_owned(),
            )
        };
        assert!(matches!(
            error("org.freedesktop.systemd1.UnitExists"),
            SystemdError::Exists { .. }
        ));
        assert!(matches!(
            error("org.freedesktop.systemd1.NoSuchUnit"),
            SystemdError::NoUnit { .. }
        ));
        let denied = error("org.freedesktop.DBus.Error.AccessDenied").to_string();
        assert!(denied.contains("start a.slice") && denied.contains("run as root"));
        let other = error("org.freedesktop.DBus.Error.InvalidArgs").to_string();
        assert_eq!(
            other,
            "systemd refuses to start a.slice: why (org.freedesktop.DBus.Error.InvalidArgs)"
        );
    }
}
