// What the kernel says of a worker, who chooses names and paths in it.
#include "launcher/core/diagnosis/kernel_view.hpp"
#include "launcher/core/diagnosis/socket_table.hpp"
#include "rendezvous/core/diagnosis/rank_look.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  static_cast<void>(parse_thread_stat(text));
  static_cast<void>(parse_thread_status(text));
  KernelView view{.state = size > 0 ? static_cast<char>(data[0]) : 'S', .call = parse_system_call(text)};
  view.wait_channel = text.substr(0, text.find('\n'));
  for (const std::uint64_t inode : {1403832U, 1404071U, 1400906U}) {
    view.target = internet_peer(text, inode).value_or(unix_path(text, inode).value_or(descriptor_text(text)));
    for (const auto processor : {Processor::x86_64, Processor::aarch64, Processor::other}) {
      for (const char state : {view.state, 'S'}) {
        view.state = state;
        const std::string words = kernel_text(view, processor);
        fuzz::require(words.size() <= look_kernel_bytes_max);
        fuzz::require(words.find_first_of("\n\x1b") == std::string::npos);
      }
    }
  }
  fuzz::require(!socket_inode(text) || text.starts_with("socket:["));
  return 0;
}
