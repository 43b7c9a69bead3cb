#include "launcher/core/options/option_table.hpp"

#include <catch2/catch.hpp>

namespace torchup {

TEST_CASE("the nearest option", "[unit][options]") {
  REQUIRE(nearest_option("nproc") == "nproc-per-node");
  REQUIRE(nearest_option("nproc_per_nod") == "nproc-per-node");
  REQUIRE(nearest_option("redirect") == "redirects");
  REQUIRE(nearest_option("max-restart=3") == "max-restarts");
  REQUIRE(nearest_option("bogus").empty());
}

TEST_CASE("every option has one name, and a variable unless it is a question", "[unit][options]") {
  for (const OptionSpec& option : option_table()) {
    REQUIRE(find_option(option.name) == &option);
    REQUIRE(find_option(underscored(option.name)) == &option);
    REQUIRE(!option.help.empty());
    REQUIRE((option.kind == ValueKind::flag) == option.value.empty());
  }
  REQUIRE(environment_name(*find_option("nproc-per-node")) == "PET_NPROC_PER_NODE");
  REQUIRE(environment_name(*find_option('r')) == "PET_REDIRECTS");
}

}  // namespace torchup
