//! Connection strings are taken apart as libpq does it: libpq itself is asked, through Python, where the machine has both.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};

use super::text::pairs;

/// Reads strings in hexadecimal, one a line, and answers with the pairs in hexadecimal, or with `refused`.
const ASK_LIBPQ: &str = r"
import ctypes, ctypes.util, sys
name = ctypes.util.find_library('pq')
if name is None: sys.exit(77)
pq = ctypes.CDLL(name)
text = ctypes.c_char_p
class Option(ctypes.Structure):
    _fields_ = [('keyword', text), ('envvar', text), ('compiled', text), ('val', text),
                ('label', text), ('dispchar', text), ('dispsize', ctypes.c_int)]
pq.PQconninfoParse.restype = ctypes.POINTER(Option)
pq.PQconninfoParse.argtypes = [text, ctypes.c_void_p]
for line in sys.stdin:
    options = pq.PQconninfoParse(bytes.fromhex(line.strip()), None)
    if not options:
        print('refused')
        continue
    found, place = [], 0
    while options[place].keyword:
        if options[place].val is not None:
            found.append(options[place].keyword.decode() + '=' + options[place].val.hex())
        place += 1
    print(' '.join(found))
";
const CASES: usize = 4000;
/// Known to every libpq of today, and taken by us with any value.
const KEYS: [&str; 8] = ["host", "port", "user", "password", "dbname", "options", "sslrootcert", "application_name"];
/// What strings are made of: the characters with a meaning, and some without.
const PIECES: [&str; 24] = [
    "=", " ", "'", "\\", "%41", "%", "%C3%A9", "%00", "@", ":", "/", "?", "&", ",", "[", "]", "[::1]", "é", "#", "a",
    "x1", "\t", "sslmode", "6000",
];

#[test]
fn connection_strings_are_taken_apart_as_libpq_does() {
    let mut random = fastrand::Rng::with_seed(7);
    let texts: Vec<String> = (0..CASES).map(|case| make(&mut random, case)).collect();
    let Some(answers) = ask_libpq(&texts) else {
        eprintln!("not tested: this machine has no libpq that Python can load");
        return;
    };
    let mut taken = 0;
    for (text, libpq) in texts.iter().zip(&answers) {
        let ours = pairs(text).map(|pairs| {
            pairs.into_iter().map(|(key, value)| (key.name.to_owned(), value)).collect::<BTreeMap<_, _>>()
        });
        match (ours, libpq) {
            (Ok(ours), Some(libpq)) => {
                assert_eq!(&ours, libpq, "{text:?}");
                taken += 1;
            }
            (Err(_), None) => {}
            (Ok(ours), None) => panic!("libpq refuses {text:?}, and we read {ours:?}"),
            // Refused on purpose: an SQL programmer's quote, where libpq begins a key with it, and text in another encoding.
            (Err(error), Some(_))
                if ["another quote", "not UTF-8"].iter().any(|words| error.report().contains(words)) => {}
            (Err(error), Some(libpq)) => panic!("libpq reads {text:?} as {libpq:?}, and we say {}", error.report()),
        }
    }
    assert!(taken > CASES / 3, "only {taken} of {CASES} strings were good");
}

/// A string by its kind: pairs and URLs that are well formed, with any values; and the same with pieces thrown in.
fn make(random: &mut fastrand::Rng, case: usize) -> String {
    let is_url = case % 2 == 1;
    let mut text = if is_url { make_url(random) } else { make_pairs(random) };
    if case % 4 >= 2 {
        for _ in 0..random.usize(1..4) {
            let places: Vec<usize> = text.char_indices().map(|(at, _)| at).filter(|&at| !is_url || at > 11).collect();
            let piece = random.choice(PIECES).unwrap_or_default();
            // A space in a URL is read in its own way by each version.
            if !is_url || !matches!(piece, " " | "\t") {
                text.insert_str(random.choice(places).unwrap_or(text.len()), piece);
            }
        }
    }
    text
}

fn make_value(random: &mut fastrand::Rng) -> String {
    (0..random.usize(0..5)).map(|_| random.choice(PIECES).unwrap_or_default()).collect()
}

fn make_pairs(random: &mut fastrand::Rng) -> String {
    let pair = |random: &mut fastrand::Rng| {
        let (key, value) = (random.choice(KEYS).unwrap_or_default(), make_value(random));
        let escaped = value.replace('\\', r"\\").replace('\'', r"\'");
        match random.usize(0..3) {
            0 => format!("{key} = '{escaped}' "),
            1 => format!("{key}='{escaped}'"),
            _ => format!("\t{key}={} ", escaped.replace([' ', '\t'], r"\ ")),
        }
    };
    (0..random.usize(0..4)).map(|_| pair(random)).collect()
}

fn make_url(random: &mut fastrand::Rng) -> String {
    let encoded = |random: &mut fastrand::Rng| {
        let value = make_value(random);
        value
            .bytes()
            .map(
                |byte| if byte.is_ascii_alphanumeric() { char::from(byte).to_string() } else { format!("%{byte:02X}") },
            )
            .collect::<String>()
    };
    let mut text = (*random.choice(&["postgres://", "postgresql://"]).unwrap_or(&"")).to_owned();
    if random.bool() {
        text.push_str(&format!("{}:{}@", encoded(random), encoded(random)));
    }
    let hosts = ["a", "[::1]", "", "%2Frun%2Fpg", "db.example:6000", "[fe80::1]:1"];
    let list: Vec<&str> = (0..random.usize(1..4)).map(|_| *random.choice(&hosts).unwrap_or(&"")).collect();
    text.push_str(&list.join(","));
    if random.bool() {
        text.push_str(&format!("/{}", encoded(random)));
    }
    let parameters: Vec<String> = (0..random.usize(0..3))
        .map(|_| format!("{}={}", random.choice(KEYS).unwrap_or_default(), encoded(random)))
        .collect();
    if !parameters.is_empty() {
        text.push_str(&format!("?{}", parameters.join("&")));
    }
    text
}

/// What libpq makes of each string: its pairs, or `None` where it refuses it. `None` for all where there is no libpq.
fn ask_libpq(texts: &[String]) -> Option<Vec<Option<BTreeMap<String, String>>>> {
    let mut python =
        Command::new("python3").args(["-c", ASK_LIBPQ]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().ok()?;
    let mut stdin = python.stdin.take()?;
    let lines: String =
        texts.iter().map(|text| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>() + "\n").collect();
    let writer = std::thread::spawn(move || {
        // A Python that found no libpq has closed its end.
        let _written = stdin.write_all(lines.as_bytes());
    });
    let output = python.wait_with_output().ok()?;
    writer.join().ok()?;
    if output.status.code() == Some(77) {
        return None;
    }
    assert!(output.status.success(), "Python failed");
    let pair = |pair: &str| {
        let (key, value) = pair.split_once('=').expect("a pair");
        let bytes: Vec<u8> = (0..value.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&value[at..at + 2], 16).expect("hexadecimal"))
            .collect();
        (key.to_owned(), String::from_utf8_lossy(&bytes).into_owned())
    };
    let answers = String::from_utf8(output.stdout).expect("ASCII");
    let answers: Vec<_> = answers
        .lines()
        .map(|line| (line != "refused").then(|| line.split(' ').filter(|text| !text.is_empty()).map(pair).collect()))
        .collect();
    assert_eq!(answers.len(), texts.len());
    Some(answers)
}
