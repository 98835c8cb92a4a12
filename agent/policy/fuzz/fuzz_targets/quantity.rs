//! Any text as a quantity: nothing panics, and what is read obeys the rules of rounding and signs.
#![no_main]

use libfuzzer_sys::fuzz_target;
use podwarden_policy::{
    Bytes, MilliCpu,
    quantity::{QuantityError, parse_count, parse_cpu, parse_memory},
};

fuzz_target!(|text: &str| {
    let cpu = parse_cpu(text);
    let memory = parse_memory(text);
    assert_eq!(memory.map(|bytes| bytes.0), parse_count(text));

    match (cpu, memory) {
        // Both round up, so the finer one rounded up again is the coarser one.
        (Ok(MilliCpu(milli)), Ok(Bytes(bytes))) => assert_eq!(milli.div_ceil(1000), bytes),
        // A thousand times as much may be too much.
        (Err(QuantityError::Overflow), Ok(Bytes(bytes))) => {
            assert!(bytes > i64::MAX as u64 / 1000);
        }
        (Err(cpu), Err(memory)) => assert_eq!(cpu, memory),
        (Ok(_), Err(error)) => panic!("CPU, but no memory: {error}"),
        (Err(error), Ok(_)) => panic!("memory, but no CPU: {error}"),
    }

    if let Ok(bytes) = memory {
        assert!(bytes.0 <= i64::MAX as u64);
        assert_eq!(parse_memory(&bytes.to_string()), Ok(bytes));
        if !text.starts_with(['+', '-']) {
            assert_eq!(parse_memory(&format!("+{text}")), memory);
            assert_eq!(parse_memory(&format!("0{text}")), memory);
            let negative = parse_memory(&format!("-{text}"));
            let expected = if bytes.is_zero() {
                Ok(bytes)
            } else {
                Err(QuantityError::Negative)
            };
            assert_eq!(negative, expected);
        }
    }
    if let Ok(milli) = cpu {
        assert_eq!(parse_cpu(&milli.to_string()), Ok(milli));
    }
});
