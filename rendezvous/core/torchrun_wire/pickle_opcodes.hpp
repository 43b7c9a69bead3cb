#pragma once

#include <string_view>

/// The operations of Python's pickle that torchrun's state is made of, by their bytes. No other is read or written.
///
/// Source: CPython, Lib/pickle.py, protocols 4 and 5.
namespace torchup::pickle {

enum Opcode : unsigned char {
  mark = '(',
  stop = '.',
  none = 'N',
  new_true = 0x88,
  new_false = 0x89,
  int1 = 'K',
  int2 = 'M',
  int4 = 'J',
  long1 = 0x8a,
  short_text = 0x8c,
  long_text = 'X',
  short_bytes = 'C',
  empty_tuple = ')',
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  empty_dict = '}',
  set_item = 's',
  set_items = 'u',
  empty_set = 0x8f,
  add_items = 0x90,
  stack_global = 0x93,
  new_object = 0x81,
  build = 'b',
  reduce = 'R',
  memoize = 0x94,
  memo_get1 = 'h',
  memo_get4 = 'j',
  protocol = 0x80,
  frame = 0x95,
};

inline constexpr std::string_view torchrun_module = "torch.distributed.elastic.rendezvous.dynamic_rendezvous";

}  // namespace torchup::pickle
