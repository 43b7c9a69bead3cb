#include "launcher/core/options/option_values.hpp"
#include "launcher/core/text/python_numbers.hpp"

#include <catch2/catch.hpp>
#include <map>

namespace torchup {
namespace {

VariableLookup from(std::map<std::string, std::string, std::less<>> variables) {
  return [variables](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional{found->second};
  };
}

}  // namespace

TEST_CASE("numbers as Python reads them", "[unit][options]") {
  REQUIRE(python_int("1_0") == 10);
  REQUIRE(python_int(" +7\t") == 7);
  REQUIRE(python_int("-0") == 0);
  for (const char* text : {"", "3.0", "_1", "1_", "1__0", "0x10", "+-1", "1 0", "99999999999999999999"}) {
    REQUIRE(python_int(text) == std::nullopt);
  }
  REQUIRE(python_float("1e-1") == 0.1);
  REQUIRE(python_float(" 2 ") == 2.0);
  REQUIRE(python_float("inf"));
  for (const char* text : {"", "nan", "1.5s", "++1"}) REQUIRE(python_float(text) == std::nullopt);
}

TEST_CASE("comma lists keep doubled commas", "[unit][options]") {
  REQUIRE(comma_list("a,,b,c") == std::vector<std::string>{"a,b", "c"});
  REQUIRE(comma_list("") == std::vector<std::string>{""});
}

TEST_CASE("command line, then variable, then file", "[unit][options]") {
  OptionValues values;
  values.set("nnodes", "1");
  REQUIRE(values
              .read_environment(
                  from({{"PET_NNODES", "2"}, {"PET_ROLE", "env"}, {"PET_STANDALONE", "2"}, {"PET_MODULE", "0"}}))
              .has_value());
  REQUIRE(values.read_config("role = file  \n# comment\n\nmax_restarts = '3'\nno-python = true\nquiet = false\n", "f")
              .has_value());
  REQUIRE(values.text("nnodes") == "1");
  REQUIRE(values.text("role") == "env");
  REQUIRE(values.flag("standalone"));
  REQUIRE(!values.flag("module"));
  REQUIRE(values.integer("max-restarts", 0).value() == 3);
  REQUIRE(values.flag("no-python"));
  REQUIRE(!values.flag("quiet"));
}

TEST_CASE("an empty variable counts as set and a flag's must be a number", "[unit][options]") {
  OptionValues values;
  REQUIRE(values.read_environment(from({{"PET_MASTER_PORT", ""}})).has_value());
  REQUIRE(check_types(values).error().message() == "argument --master-port/--master_port: invalid int value: ''");
  OptionValues flag;
  REQUIRE(flag.read_environment(from({{"PET_STANDALONE", "yes"}})).error().message() ==
          "PET_STANDALONE: invalid literal for int() with base 10: 'yes'");
}

TEST_CASE("choices hold wherever a value comes from", "[unit][options]") {
  for (const auto& [name, variable] : {std::pair{"same-world", "PET_SAME_WORLD"}, {"rank-order", "PET_RANK_ORDER"}}) {
    OptionValues values;
    const std::string error = values.read_environment(from({{variable, "fial"}})).error().message();
    REQUIRE(error.find(std::string{variable} + ": invalid choice: 'fial' (choose from '") != std::string::npos);
    const auto config = values.read_config(std::string{name} + " = fial", "job.conf");
    REQUIRE(config.error().message().find("job.conf:1: " + std::string{name} + ": invalid choice: 'fial'") !=
            std::string::npos);
  }
  OptionValues values;
  REQUIRE(values.read_config("print-completion = nosuch", "f").has_error());
  REQUIRE(values.read_config("max-restarts = x", "f").error().message().find("f:1: ") != std::string::npos);
  REQUIRE(values.read_environment(from({{"PET_SAME_WORLD", "fail"}})).has_value());
  REQUIRE(values.text("same-world") == "fail");
}

TEST_CASE("a start method that is none is passed over in its variable, as by torchrun", "[unit][options]") {
  OptionValues values;
  REQUIRE(values.read_environment(from({{"PET_START_METHOD", "foo"}})).has_value());
  REQUIRE_FALSE(values.has("start-method"));
}

TEST_CASE("a wrong value is told in argparse's words", "[unit][options]") {
  REQUIRE(wrong_value(*find_option("start-method"), "foo") ==
          "argument --start-method/--start_method: invalid choice: 'foo' (choose from 'spawn', 'fork', 'forkserver')");
  REQUIRE(wrong_value(*find_option("node-rank"), "1.5") ==
          "argument --node-rank/--node_rank: invalid int value: '1.5'");
  REQUIRE_FALSE(wrong_value(*find_option("start-method"), "fork").has_value());
  REQUIRE_FALSE(wrong_value(*find_option("role"), "").has_value());
}

TEST_CASE("errors of a configuration file name file and line", "[unit][options]") {
  OptionValues values;
  REQUIRE(values.read_config("role = a\nnproc_per_nod = 2\n", "job.conf").error().message() ==
          "job.conf:2: no option 'nproc_per_nod', did you mean 'nproc-per-node'?");
  REQUIRE(values.read_config("quiet = maybe", "f").error().message() == "f:1: quiet takes true or false, not 'maybe'");
  for (const std::string text : {"{\"role\": \"a\"}", "[torchup]", "role a"}) {
    REQUIRE(values.read_config(text, "f").error().message().find("'" + text + "' is not NAME = VALUE") !=
            std::string::npos);
  }
  REQUIRE(values.read_config("", "f").has_value());
  REQUIRE(values.read_config(std::string((1 << 20) + 1, '#'), "f").has_error());
}

}  // namespace torchup
