//! The page, in a real browser.

use std::time::Instant;

use podwarden::cli::words::PRESENTER;
use serde_json::json;

use self::fixture::{eviction, figures, pod, record, victim};
use crate::{chromium::Page, plan, support::Api};

pub(crate) mod fixture;
mod pictures;

/// Contrast of text against what is below it, the least of all (WCAG 2.2, 1.4.3 asks for 4.5).
const LEAST_CONTRAST: &str = r"(() => {
  const light = (c) => { const [r, g, b] = c.match(/[\d.]+/g).map(Number).map((v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (c !== 'rgba(0, 0, 0, 0)') return c; } return 'rgb(255, 255, 255)'; };
  let least = [99, ''];
  for (const e of document.querySelectorAll('body *')) {
    if (!e.checkVisibility() || ![...e.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim())) continue;
    if (e.closest('svg')) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(ground(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < least[0]) least = [ratio, e.outerHTML.slice(0, 200)];
  }
  return least;
})()";

const ROWS: &str = "document.querySelectorAll('#tree tr.pod').length";

async fn loaded(api: &Api, pods: usize) -> Option<Page> {
    let Some(mut page) = Page::open().await else {
        println!("skipped: there is no Chromium (Debian package chromium-headless-shell)");
        return None;
    };
    api.published.set_presenter(PRESENTER);
    api.published
        .publish_planned(plan::planned_of(pod(0, 0).pod_ref));
    api.published.publish(figures(pods, 1));
    let url = format!("http://{}/", api.tcp);
    page.resize(1280, 900).await;
    page.call("Page.navigate", json!({"url": url})).await;
    page.until(&format!("{ROWS} === {pods}")).await;
    page.until("document.getElementById('connection').textContent === 'live'")
        .await;
    Some(page)
}

#[tokio::test]
async fn the_page_shows_the_node_its_pods_and_an_eviction_as_it_happens() {
    let api = Api::start().await;
    let Some(mut page) = loaded(&api, 250).await else {
        return;
    };
    let text = page.value("document.body.innerText").await.to_string();
    for expected in [
        "node-1",
        "observes, changes nothing",
        "no kernel program sees charges: lockdown is on",
        "podwarden acts at 15.0Gi",
        "Guaranteed (kubepods), 83 pods",
        "default/web-1",
        "250 of 250",
    ] {
        assert!(text.contains(expected), "no {expected} in {text}");
    }
    let paint = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime";
    println!("first paint after {} ms", page.value(paint).await);
    // All that is fetched before the data.
    let size = "[...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
        .filter((e) => !new URL(e.name).pathname.startsWith('/v1/'))
        .reduce((sum, e) => sum + e.encodedBodySize, 0)";
    let size = page.value(size).await.as_u64().unwrap();
    println!("the page has {size} bytes");
    assert!((10 << 10..150 << 10).contains(&size), "{size}");

    // Of a name nothing becomes markup.
    assert!(text.contains("<img src=x"), "{text}");
    assert_eq!(
        page.value("document.querySelectorAll('img').length").await,
        0
    );

    // A tier without a mark is measured against kubepods: 3 of 16 GiB, not all of its own.
    let widths = "[...document.querySelectorAll('#tiers .usage')].map((e) => Math.round(e.getAttribute('width') / 100))";
    assert_eq!(page.value(widths).await, json!([6, 3, 2]));

    // A second pass moves the curves that are on the screen.
    for pass in 2..5 {
        api.published.publish(figures(250, pass));
        let drawn = format!(
            "document.querySelector('#tree .group polyline').getAttribute('points').split(' ').length === {pass}"
        );
        page.until(&drawn).await;
    }
    let first = "[...document.querySelectorAll('#tree .group td span')].slice(0, 4).map((e) => e.textContent).join()";
    let first = page.value(first).await;
    assert!(first.as_str().unwrap().ends_with("/s"), "{first}");

    // An eviction arrives by itself.
    let begun = Instant::now();
    let id = api.published.event(
        "2026-11-21T09:00:05.000000Z".to_owned(),
        Some(victim()),
        eviction(),
    );
    page.until(&format!(
        "document.querySelector('#list li.eviction[data-id=\"{id}\"]')?.textContent.includes('EVICTED default/web-0')"
    ))
    .await;
    println!("the page shows an eviction after {:?}", begun.elapsed());

    // Its record, by the keyboard alone.
    api.published.publish_flight_record(id, record());
    page.value(&format!(
        "document.querySelector('li[data-id=\"{id}\"] button').focus()"
    ))
    .await;
    page.press("Enter", "\r").await;
    page.until("document.querySelectorAll('#details .record polyline').length === 2")
        .await;
    let shown = page
        .value("document.getElementById('details').innerText")
        .await;
    for expected in [
        "killed",
        "+1.00 ms",
        "freed",
        "level of kubepods",
        "90 in all",
    ] {
        assert!(
            shown.as_str().unwrap().contains(expected),
            "no {expected} in {shown}"
        );
    }
    screenshot(&mut page, "record").await;
    page.press("Escape", "").await;
    page.until("!document.getElementById('details').open").await;
    // The focus returns to where it was.
    let focus = page
        .value("document.activeElement.closest('li')?.dataset.id")
        .await;
    assert_eq!(focus, id.to_string());

    // A pod explained in one click.
    page.value("[...document.querySelectorAll('#tree tr.pod button')].find((b) => b.textContent === 'default/web-0').click()").await;
    page.until("document.getElementById('details').innerText.includes('place 1 of 1')")
        .await;
    let shown = page
        .value("document.getElementById('details').innerText")
        .await;
    for expected in [
        "no container has a request or a limit",
        "cpu.shares",
        "CHANGES WITH",
        "Figures",
    ] {
        let shown = shown.as_str().unwrap().to_lowercase();
        assert!(
            shown.contains(&expected.to_lowercase()),
            "no {expected} in {shown}"
        );
    }
    page.value("document.getElementById('close').click()").await;

    let base = format!("http://{}/", api.tcp);
    for url in &page.requested {
        assert!(url.starts_with(&base) || url == "data:,", "{url}");
    }
    assert_eq!(page.problems, [""; 0]);
    assert_eq!(page.value("document.title").await, "node-1 · podwarden");
}

#[tokio::test]
async fn the_page_is_usable_by_keyboard_and_screen_reader_in_both_schemes_and_on_a_phone() {
    let api = Api::start().await;
    let Some(mut page) = loaded(&api, 60).await else {
        return;
    };
    api.published.event(
        "2026-11-21T09:00:05.000000Z".to_owned(),
        Some(victim()),
        eviction(),
    );
    page.until("document.querySelector('#list li.eviction') !== null")
        .await;

    let (nameless, roles) = page.roles().await;
    assert_eq!(nameless, [""; 0]);
    for role in [
        "banner",
        "main",
        "contentinfo",
        "status",
        "log",
        "table",
        "rowheader",
        "searchbox",
    ] {
        assert!(roles.iter().any(|r| r == role), "no {role} in {roles:?}");
    }
    // Tab visits the skip link first, and every pod of the tree in the end.
    page.press("Tab", "").await;
    assert_eq!(page.value("document.activeElement.className").await, "skip");

    // A filter, a collapsed tier.
    page.value("(() => { const f = document.getElementById('filter'); f.value = 'web-11'; f.dispatchEvent(new Event('input')); })()").await;
    page.until("document.getElementById('shown').textContent === '1 of 60'")
        .await;
    page.value("(() => { const f = document.getElementById('filter'); f.value = ''; f.dispatchEvent(new Event('input')); })()").await;
    let visible = "[...document.querySelectorAll('#tree tr.pod')].filter((e) => !e.hidden).length";
    page.value("document.querySelector('#tree .group button').click()")
        .await;
    assert_eq!(page.value(visible).await, 40);
    page.value("document.querySelector('#tree .group button').click()")
        .await;
    assert_eq!(page.value(visible).await, 60);

    for scheme in ["light", "dark"] {
        page.prefer(scheme).await;
        let least = page.value(LEAST_CONTRAST).await;
        assert!(least[0].as_f64().unwrap() >= 4.5, "{scheme}: {least}");
        axe(&mut page, scheme).await;
        screenshot(&mut page, scheme).await;
    }
    let ground = "getComputedStyle(document.body).backgroundColor";
    let dark = page.value(ground).await;
    page.prefer("light").await;
    assert_ne!(page.value(ground).await, dark);

    page.resize(390, 844).await;
    let width = page.value("document.documentElement.scrollWidth").await;
    assert!(width.as_u64().unwrap() <= 390, "{width}");
    screenshot(&mut page, "phone").await;
    assert_eq!(page.problems, [""; 0]);
}

/// axe-core's rules, where `PODWARDEN_AXE` names its `axe.min.js`.
async fn axe(page: &mut Page, scheme: &str) {
    let Some(file) = std::env::var_os("PODWARDEN_AXE") else {
        println!("skipped: axe-core's rules, PODWARDEN_AXE names no axe.min.js");
        return;
    };
    let source = std::fs::read_to_string(file).unwrap();
    page.value(&format!("{source}; true")).await;
    let found = "axe.run().then((r) => r.violations.map((v) => v.id + ': ' + v.nodes.map((n) => n.html).join(' | ')))";
    assert_eq!(page.value(found).await, json!([]), "{scheme}");
}

/// Kept below `PODWARDEN_SCREENSHOTS`, base64, where that is set.
async fn screenshot(page: &mut Page, name: &str) {
    let png = page.screenshot().await;
    assert!(png.starts_with("iVBOR"), "no PNG");
    if let Some(dir) = std::env::var_os("PODWARDEN_SCREENSHOTS") {
        let file = std::path::Path::new(&dir).join(format!("{name}.png.base64"));
        std::fs::write(file, png).unwrap();
    }
}

#[tokio::test]
async fn the_page_is_held_to_its_own_files() {
    let api = Api::start().await;
    for path in ["/", "/page/main.js", "/page/page.css"] {
        let (status, head, body) = api.raw(&format!("GET {path} HTTP/1.0\r\n\r\n")).await;
        assert_eq!(status, 200, "{path}");
        for expected in [
            "content-security-policy: default-src 'none'; script-src 'self';",
            "frame-ancestors 'none'",
            "x-content-type-options: nosniff",
            "referrer-policy: no-referrer",
        ] {
            assert!(head.contains(expected), "{path}: no {expected} in {head}");
        }
        assert!(!body.is_empty());
    }
    let (status, body) = api.status("GET", "/page/../secrets").await;
    assert_eq!(status, 404, "{body}");
}

#[tokio::test]
async fn live_figures_come_with_each_pass() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let api = Api::start().await;
    api.published.publish(figures(2, 1));
    let mut stream = tokio::net::UnixStream::connect(&api.socket).await.unwrap();
    let request = b"GET /v1/live HTTP/1.1\r\nhost: localhost\r\n\r\n";
    stream.write_all(request).await.unwrap();
    let mut read = String::new();
    for pass in [1, 2] {
        api.published.publish(figures(2, pass));
        let time =
            format!("\"time\":\"2026-11-21T09:00:0{pass}.000000Z\",\"pods\":[{{\"uid\":\"uid-0\"");
        while !read.contains(&time) {
            let mut bytes = [0; 4096];
            let n = stream.read(&mut bytes).await.unwrap();
            assert!(n > 0, "{read}");
            read += std::str::from_utf8(&bytes[..n]).unwrap();
        }
    }
    assert!(
        read.contains("event: node\ndata: {\"nodeName\":\"node-1\""),
        "{read}"
    );
    // It is a client that reads figures.
    assert!(api.published.has_reader());
}

#[tokio::test]
async fn events_come_in_words_and_only_the_last_of_each_group() {
    let api = Api::start().await;
    api.published.set_presenter(PRESENTER);
    for pid in 1..=5 {
        api.happen(pid);
    }
    let (_, body) = api.status("GET", "/v1/events?last=2&text=true").await;
    let events: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(events.as_array().unwrap().len(), 2, "{body}");
    assert_eq!(events[0]["pid"], 4);
    assert_eq!(events[1]["text"], "the kernel's OOM killer chose process 5");
    let (_, body) = api.status("GET", "/v1/events/5?text=true").await;
    assert!(body.contains("chose process 5"), "{body}");
    let (_, body) = api.status("GET", "/v1/events/5").await;
    assert!(!body.contains("\"text\""), "{body}");
}
