// What faulthandler, or a worker in its place, has written into the sheet.
#include "launcher/core/diagnosis/python_stack.hpp"
#include "tests/fuzz/fuzz.hpp"

using namespace torchup;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const PythonStack stack = parse_python_stack({reinterpret_cast<const char*>(data), size});
  fuzz::require(stack.threads.size() <= python_threads_max && stack.fault.size() <= python_fault_bytes_max);
  for (const PythonThread& thread : stack.threads) {
    fuzz::require(thread.frames.size() <= python_frames_max);
    for (const StackFrame& frame : thread.frames) {
      fuzz::require(frame.line >= 0 && frame.file.size() <= look_file_bytes_max &&
                    frame.function.size() <= look_function_bytes_max);
      fuzz::require(frame_text(frame).find_first_of("\n\x1b") == std::string::npos);
    }
    fuzz::require(told_frames(thread.frames).size() <= told_frames_max);
  }
  for (const bool helper_wrote : {false, true}) {
    const PythonThread* const main = main_thread(stack, helper_wrote);
    fuzz::require(!main || !stack.cut);
    static_cast<void>(is_debugged(stack, main));
  }
  return 0;
}
