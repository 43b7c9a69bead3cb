#include "worker_runtime/place/throw_error.hpp"

#include "torchup/error.hpp"

namespace torchup {

void throw_error(const std::string& message) { throw Error{message}; }

}  // namespace torchup
