#pragma once

#include <string>
#include <string_view>

/// The status page: one file with its style and script (net/ops/status_page.html), which needs no other and asks no
/// server but its own. Served it is live; with a job's story inside it is a report that needs no server at all. Pure.
namespace torchup {

/// The page without data, to be sent with `page_policy` of the same nonce.
///
/// `nonce`: letters, digits, `+`, `/`, `=`, `-`, `_`; fresh for each answer and not to be guessed, for it marks the
/// script that may run.
[[nodiscard]] std::string page_text(std::string_view nonce);

/// The value of Content-Security-Policy: nothing runs, is fetched or is framed but the page's own script and style,
/// and what they ask of the server that they came from.
[[nodiscard]] std::string page_policy(std::string_view nonce);

/// The page as a report; its nonce may be any word. `data` is JSON:
///
///     {"snapshot": …, "events": […], "lost": 0}
///
/// `snapshot` as GET /v1/jobs/ID answers, as it was at the end; its `incidents` may hold the members of their files
/// too. `events` in their order, with `seq`; `lost`: how many are missing. Nothing in it can end the block that it
/// stands in.
[[nodiscard]] std::string report_text(std::string_view nonce, std::string_view data);

}  // namespace torchup
