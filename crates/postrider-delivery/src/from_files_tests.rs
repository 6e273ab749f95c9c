#![allow(clippy::unwrap_used, reason = "a test may stop at the first surprise")]
use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Scene {
    dir: tempfile::TempDir,
    refusals: Arc<AtomicUsize>,
    /// Why what was told of last cannot be used.
    refused: Arc<Mutex<Option<String>>>,
    text: FromFiles<String>,
}

impl Scene {
    /// Two files; the second must say "good".
    fn new(every: Duration) -> Scene {
        let dir = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| dir.path().join(name));
        fs::write(&paths[0], "1").unwrap();
        fs::write(&paths[1], "good").unwrap();
        let refusals = Arc::new(AtomicUsize::new(0));
        let refused = Arc::new(Mutex::new(None));
        let (counted, held, watched) = (Arc::clone(&refusals), Arc::clone(&refused), paths.to_vec());
        let watch = FileWatch::default().every(every).on_change(move |files, refusal| {
            assert_eq!(files, watched);
            counted.fetch_add(usize::from(refusal.is_some()), Ordering::Relaxed);
            *held.lock().unwrap() = refusal.map(str::to_owned);
        });
        let text = FromFiles::new(paths.to_vec(), &watch, joined).unwrap();
        Scene { dir, refusals, refused, text }
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.dir.path().join(name), text).unwrap();
    }

    fn now(&self) -> (String, usize) {
        (self.text.current().to_string(), self.refusals.load(Ordering::Relaxed))
    }
}

fn joined(contents: &[Vec<u8>]) -> Result<String> {
    let [first, second] = contents else { panic!("two files") };
    if second != b"good" {
        return Err(Error::new(ErrorKind::Configuration, "the second file is not good"));
    }
    Ok(String::from_utf8_lossy(first).into_owned())
}

#[tokio::test]
async fn a_change_is_seen_at_the_next_look_even_within_one_tick_of_the_clock() {
    let scene = Scene::new(Duration::ZERO);
    assert_eq!(scene.now(), ("1".into(), 0));
    // As long as before, and perhaps within the same tick.
    scene.write("a", "2");
    assert_eq!(scene.now().0, "2");
    let path = scene.dir.path().join("a");
    let ticked = File::options().write(true).open(&path).unwrap();
    let modified = ticked.metadata().unwrap().modified().unwrap();
    scene.write("a", "3");
    ticked.set_modified(modified).unwrap();
    assert_eq!(scene.now().0, "3");
}

#[tokio::test]
async fn what_cannot_be_used_is_counted_once_and_the_value_of_before_holds() {
    let scene = Scene::new(Duration::ZERO);
    scene.write("a", "2");
    scene.write("b", "bad");
    for _ in 0..5 {
        assert_eq!(scene.now(), ("1".into(), 1));
    }
    assert!(scene.refused.lock().unwrap().as_deref().unwrap().contains("the second file is not good"));
    fs::remove_file(scene.dir.path().join("b")).unwrap();
    for _ in 0..5 {
        assert_eq!(scene.now(), ("1".into(), 2));
    }
    assert!(scene.refused.lock().unwrap().as_deref().unwrap().contains("No such file"));
    scene.write("b", "good");
    assert_eq!(scene.now(), ("2".into(), 2));
    assert_eq!(*scene.refused.lock().unwrap(), None);
}

#[tokio::test]
async fn a_file_that_is_replaced_as_a_whole_or_behind_a_link_is_seen() {
    let scene = Scene::new(Duration::ZERO);
    scene.write("new", "2");
    fs::rename(scene.dir.path().join("new"), scene.dir.path().join("a")).unwrap();
    assert_eq!(scene.now().0, "2");
    scene.write("elsewhere", "3");
    fs::remove_file(scene.dir.path().join("a")).unwrap();
    std::os::unix::fs::symlink("elsewhere", scene.dir.path().join("a")).unwrap();
    assert_eq!(scene.now().0, "3");
}

#[tokio::test]
async fn files_are_not_looked_at_more_often_than_told() {
    let scene = Scene::new(Duration::from_secs(3_600));
    scene.write("a", "2");
    assert_eq!(scene.now().0, "1");
}

#[tokio::test]
async fn the_first_reading_says_which_file_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let large = dir.path().join("large");
    fs::write(&large, vec![0; 1 << 20 | 1]).unwrap();
    for (path, word) in [
        (dir.path().join("missing"), "No such file"),
        (dir.path().to_owned(), "not a file"),
        (large, "more than 1 MiB"),
    ] {
        let error = FromFiles::new(vec![path.clone()], &FileWatch::default(), |_| Ok(())).unwrap_err();
        let detail = error.detail().unwrap();
        assert!(detail.contains(word) && detail.contains(path.to_str().unwrap()), "{detail}");
    }
}
