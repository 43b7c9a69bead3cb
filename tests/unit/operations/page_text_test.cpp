#include "rendezvous/core/ops/page_text.hpp"

#include <catch2/catch.hpp>
#include <string>

namespace torchup {
namespace {

std::size_t count(const std::string& text, std::string_view part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

TEST_CASE("the page's one script and one style carry the nonce that its policy names", "[unit][operations]") {
  const std::string page = page_text("n0nce+/=");
  REQUIRE(page.starts_with("<!doctype html>"));
  REQUIRE(count(page, "<script nonce=\"n0nce+/=\">") == 1);
  REQUIRE(count(page, "<style nonce=\"n0nce+/=\">") == 1);
  REQUIRE(count(page, "@nonce@") == 0);
  REQUIRE(count(page, "<script") == 2);  // the other one is data
  REQUIRE(page.find("script-src 'nonce-n0nce+/='") != std::string::npos);
  REQUIRE(page_policy("n0nce+/=") ==
          "default-src 'none'; script-src 'nonce-n0nce+/='; style-src 'nonce-n0nce+/='; connect-src 'self'; "
          "frame-ancestors 'none'; base-uri 'none'; form-action 'none'");
}

TEST_CASE("the page is small, and a live one has no data in it", "[unit][operations]") {
  const std::string page = page_text("n");
  REQUIRE(page.size() <= 100 * 1024);
  REQUIRE(count(page, "<script type=\"application/json\" id=\"data\">null</script>") == 1);
}

TEST_CASE("text reaches the page's document as text alone", "[unit][operations]") {
  const std::string page = page_text("n");
  for (const char* way : {"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "srcdoc",
                          "DOMParser", "createContextualFragment", "localStorage", "document.cookie"})
    REQUIRE(count(page, way) == 0);
  REQUIRE(count(page, "http://") + count(page, "https://") == 0);  // it asks nobody else
}

TEST_CASE("nothing in a report's data ends the block that it stands in", "[unit][operations]") {
  const std::string page = report_text("n", R"({"message":"</script><img src=x> @nonce@ <!--"})");
  REQUIRE(count(page, R"(<script type="application/json" id="data">{"message":"\u003c/script>\u003cimg src=x> )"
                      R"(@nonce@ \u003c!--"}</script>)") == 1);
  REQUIRE(count(page, "<img") == 0);
}

}  // namespace
}  // namespace torchup
