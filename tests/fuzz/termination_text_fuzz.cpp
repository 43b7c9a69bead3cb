// A container's termination message, of whatever workers and other nodes have said.
#include "launcher/core/record/termination_text.hpp"
#include "launcher/core/text/text.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

namespace {

/// Lines of printable UTF-8 that fit.
void check(std::string_view text) {
  fuzz::require(text.size() <= termination_bytes_max && text.ends_with('\n'));
  while (!text.empty()) {
    const Character character = first_character(text);
    const auto byte = static_cast<unsigned char>(text.front());
    fuzz::require(character.valid && (byte >= 0x20 || byte == '\n') && byte != 0x7f);
    text.remove_prefix(character.length);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes{reinterpret_cast<const char*>(data), size};
  const auto half = bytes.substr(0, size / 2), rest = bytes.substr(size / 2);
  WorkerFailure failure;
  failure.exit_code = size % 2 == 0 ? 1 : -11;
  failure.host = std::string{half.substr(0, 64)};
  failure.message = std::string{half};
  if (size % 3 != 0) failure.error_file = "e";
  Incident incident;
  incident.failures = {failure};
  add_backtraces(incident.evidence, failure, lines_of(rest));
  incident.evidence.last_lines = lines_of(rest);
  check(termination_text(1, {1, std::string{rest}, {failure}}, &incident));
  check(termination_text(1, {1, std::string{rest}, {failure}}, nullptr));
  check(termination_text(143, {143, std::string{half}, {}}, &incident));
  return 0;
}
