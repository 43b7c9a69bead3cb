#pragma once

#include <cstdint>
#include <string_view>

/// The recorder's words for operations and types of numbers, as people know them.
namespace torchup {

/// "all_reduce" of "gloo:all_reduce", "send" of "nccl:send 0->1", "all_gather" of "nccl:_all_gather_base": without the
/// backend, the peers and the variant, of which two members may use different ones. A view into `operation`.
[[nodiscard]] std::string_view plain_operation(std::string_view operation);

/// "gloo" of "gloo:all_reduce"; empty: not known. A group may have several backends, each of which counts its own
/// calls. A view into `operation`.
[[nodiscard]] std::string_view backend_of(std::string_view operation);

/// Whether all members give an operation, by its plain name, as many elements, of one type.
[[nodiscard]] bool needs_equal_sizes(std::string_view plain);

/// "float32" of "Float"; what is not known comes back as it is.
[[nodiscard]] std::string_view plain_dtype(std::string_view dtype);

/// Of `elements` of the type, by either of its names; -1 where that is not known, or no number of bytes.
[[nodiscard]] std::int64_t bytes_of(std::int64_t elements, std::string_view dtype);

}  // namespace torchup
