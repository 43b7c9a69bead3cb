#include "launcher/os/io/secrets.hpp"

#include <utility>

#include "launcher/core/plan/worker_environment.hpp"
#include "rendezvous/net/io/token.hpp"

namespace torchup {

Result<> read_tokens(const OptionValues& options, std::string from_variable, LaunchConfig& plan) {
  if (options.has("token-file") || !from_variable.empty()) {
    auto token = options.has("token-file") ? read_token_file(options.text("token-file"))
                                           : checked_token(std::move(from_variable), std::string{token_variable});
    if (!token) return token.error();
    plan.rendezvous.token = *std::move(token);
  }
  if (!options.has("read-token-file")) return {};
  auto token = read_token_file(options.text("read-token-file"));
  if (!token) return Error{token.error().code, "--read-token-file: " + token.error().context};
  plan.operations.read_token = *std::move(token);
  return {};
}

}  // namespace torchup
