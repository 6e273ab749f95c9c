//! A test for each supported version, in a module named after it.

/// `area::name` is an async function that takes the major version.
macro_rules! on_version {
    ($module:ident, $version:literal, $($area:ident::$name:ident),*) => {
        mod $module {
            $(
                #[tokio::test]
                async fn $name() {
                    crate::$area::$name($version).await;
                }
            )*
        }
    };
}

macro_rules! on_every_version {
    ($($test:tt)*) => {
        on_version!(on_14, 14, $($test)*);
        on_version!(on_15, 15, $($test)*);
        on_version!(on_16, 16, $($test)*);
        on_version!(on_17, 17, $($test)*);
        on_version!(on_18, 18, $($test)*);
    };
}
