use proptest::prelude::*;

use super::*;

fn q(text: &str) -> Quantity {
    text.parse().unwrap()
}

#[test]
fn every_suffix_has_its_size() {
    for (text, bytes) in [
        ("0", 0),
        ("1", 1),
        ("1Ki", 1 << 10),
        ("1Mi", 1 << 20),
        ("1Gi", 1 << 30),
        ("1Ti", 1 << 40),
        ("1Pi", 1 << 50),
        ("1Ei", 1_i128 << 60),
        ("1k", 1000),
        ("1M", 1_000_000),
        ("1G", 1_000_000_000),
        ("1T", 1_000_000_000_000),
        ("1P", 1_000_000_000_000_000),
        ("1E", 1_000_000_000_000_000_000),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1e+3", 1000),
        ("5000e-3", 5),
        ("1.5Gi", 3 << 29),
        (".5Ki", 512),
        ("5.", 5),
        ("+5", 5),
        ("-5", -5),
        ("800E", 800_000_000_000_000_000_000),
    ] {
        assert_eq!(q(text).bytes(), bytes, "{text}");
    }
}

#[test]
fn bytes_are_rounded_up() {
    for (text, bytes) in [("1m", 1), ("1500m", 2), ("0.1Ki", 103), ("1n", 1), ("0.00000000001", 1), ("-1500m", -1)] {
        assert_eq!(q(text).bytes(), bytes, "{text}");
    }
}

#[test]
fn what_is_no_quantity_is_named_in_the_error() {
    for text in ["", "Gi", "10GB", "10 Gi", "1.2.3", ".", "--1", "1e", "1e3.5", "1i", "0x10", "10gi", "1_000", "١"] {
        assert_eq!(text.parse::<Quantity>(), Err(Error::Parse { value: text.to_owned() }), "{text}");
    }
    assert!("10GB".parse::<Quantity>().unwrap_err().to_string().contains("\"10GB\""));
}

#[test]
fn quantities_are_written_canonically() {
    for (text, canonical) in [
        ("1024Mi", "1Gi"),
        ("1000m", "1"),
        ("1.5Gi", "1536Mi"),
        ("1.5G", "1500M"),
        ("1000000k", "1G"),
        ("0Gi", "0"),
        ("0.5Ki", "512"),
        ("1Ki", "1Ki"),
        ("1025", "1025"),
        ("0.1Ki", "102400m"),
        ("1e3", "1e3"),
        ("10e3", "10e3"),
        ("1e4", "10e3"),
        ("1e1", "10"),
        ("1e-3", "1e-3"),
        ("1234567", "1234567"),
        ("2048Ei", "2048Ei"),
        ("800E", "800E"),
        ("-1024Ki", "-1Mi"),
        ("100n", "100n"),
    ] {
        assert_eq!(q(text).to_string(), canonical, "{text}");
    }
}

#[test]
fn equal_amounts_are_equal_however_they_are_written() {
    assert_eq!(q("1Gi"), q("1073741824"));
    assert_eq!(q("1k"), q("1e3"));
    assert!(q("1G") < q("1Gi"));
    assert!(q("950E") > q("800E"), "beyond 64 bits");
}

#[test]
fn absurd_numbers_are_capped_and_stay_in_order() {
    let absurd = q("1e1000000000000");
    assert_eq!(absurd, q(&"9".repeat(400)));
    assert!(absurd > q("999999999E"));
    assert!(q("-1e999") < q("-1E"));
    assert_eq!(q("1e-1000000000000").bytes(), 1);
    assert_eq!(q(&format!("1.{}1Gi", "0".repeat(200))).bytes(), (1 << 30) + 1);
}

#[test]
fn a_size_must_fit_csi() {
    assert_eq!(q("1Gi").size(), Ok(1 << 30));
    assert_eq!(q("0").size(), Ok(0));
    assert_eq!(q("9223372036854775807").size(), Ok(i64::MAX));
    for text in ["8Ei", "9Ei", "-1"] {
        let error = q(text).size().unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
}

#[test]
fn json_may_hold_a_string_or_a_number() {
    for (json, text) in [("\"10Gi\"", "10Gi"), ("10", "10"), ("-3", "-3"), ("1.5", "1500m"), ("1e3", "1k")] {
        let quantity: Quantity = serde_json::from_str(json).unwrap();
        assert_eq!(quantity.to_string(), text, "{json}");
    }
    let error = serde_json::from_str::<Quantity>("\"10GB\"").unwrap_err().to_string();
    assert!(error.contains("10GB"), "{error}");
    assert!(serde_json::from_str::<Quantity>("true").is_err());
}

fn written() -> impl Strategy<Value = String> {
    let suffixes =
        ["", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e3", "e-3", "e7", "E2"];
    (any::<bool>(), 0..10_000_000_000_u64, prop::option::of(0..1_000_000_u32), prop::sample::select(suffixes.to_vec()))
        .prop_map(|(negative, whole, fraction, suffix)| {
            let sign = if negative { "-" } else { "" };
            let fraction = fraction.map(|fraction| format!(".{fraction}")).unwrap_or_default();
            format!("{sign}{whole}{fraction}{suffix}")
        })
}

proptest! {
    #[test]
    fn what_is_written_reads_back_as_the_same_amount(text in written()) {
        let first = q(&text);
        let again = q(&first.to_string());
        prop_assert_eq!(first, again);
        prop_assert_eq!(first.to_string(), again.to_string());
    }

    #[test]
    fn every_number_of_bytes_survives(bytes in any::<i64>()) {
        prop_assert_eq!(q(&Quantity::from_bytes(bytes).to_string()).bytes(), i128::from(bytes));
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "[-+]?[0-9.]{0,60}[eEinumkKMGTP]{0,3}[-+]?[0-9]{0,12}") {
        if let Ok(quantity) = text.parse::<Quantity>() {
            let _ = (quantity.bytes(), quantity.size(), quantity.to_string());
        }
    }
}
