// What torchup-stack has written, and the names of functions that it met.
#include "launcher/core/diagnosis/native_text.hpp"
#include "rendezvous/core/diagnosis/rank_look.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text{reinterpret_cast<const char*>(data), size};
  const auto threads = parse_native_text(text);
  fuzz::require(threads.size() <= native_threads_max);
  std::string again;
  for (const NativeThread& thread : threads) {
    fuzz::require(thread.frames.size() <= native_frames_max);
    for (const std::string& frame : thread.frames) fuzz::require(frame.size() <= look_native_bytes_max);
    again += to_text(thread);
  }
  fuzz::require(parse_native_text(again).size() == threads.size());
  const std::string frame = native_frame_text(text, text, size);
  fuzz::require(frame.size() <= look_native_bytes_max && frame.find_first_of("\n\x1b") == std::string::npos);
  return 0;
}
