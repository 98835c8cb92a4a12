//! Enums whose variants each have a name: the variant, its name and what it means stand in one place.

/// An enum with `ALL`, `as_str` and `Display`.
///
/// ```
/// podwarden_policy::names! {
///     /// Where it is warm.
///     pub enum Season {
///         /// From June on.
///         Summer = "summer",
///         /// From December on.
///         Winter = "winter",
///     }
/// }
/// assert_eq!(Season::ALL.map(Season::as_str), ["summer", "winter"]);
/// assert_eq!(format!("{:>7}", Season::Winter), " winter");
/// ```
#[macro_export]
macro_rules! names {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)* }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl $name {
            /// Every one, in order.
            pub const ALL: [Self; [$($text),*].len()] = [$(Self::$variant),*];

            /// Its name, as it is written and shown.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)*
                }
            }
        }

        impl ::core::fmt::Display for $name {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

/// As [`names!`], with the name for serde as well.
macro_rules! words {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)* }) => {
        $crate::names! {
            $(#[$meta])*
            #[derive(serde::Serialize, serde::Deserialize)]
            pub enum $name {
                $($(#[$doc])* #[serde(rename = $text)] $variant = $text,)*
            }
        }
    };
}
