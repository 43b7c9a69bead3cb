#include "launcher/os/io/secrets.hpp"

#include <utility>

#include "launcher/core/plan/worker_environment.hpp"
#include "rendezvous/net/etcd/etcd_tls.hpp"
#include "rendezvous/net/io/password.hpp"
#include "rendezvous/net/io/token.hpp"

namespace torchup {

Result<> read_tokens(const OptionValues& options, std::string from_variable, LaunchConfig& plan) {
  if (plan.rendezvous.etcd && !plan.rendezvous.etcd->conf.user.empty()) {
    auto password = read_etcd_password(plan.rendezvous.etcd->conf.password_file);
    if (!password) return Error{password.error().code, "--rdzv-conf: " + password.error().context};
    plan.rendezvous.etcd->password = *std::move(password);
  }
  if (plan.rendezvous.etcd && plan.rendezvous.etcd->conf.protocol == "https") {
    const etcd::Conf& conf = plan.rendezvous.etcd->conf;
    auto opened = EtcdTls::open({conf.ca_file, conf.cert_file, conf.key_file});
    if (!opened) return Error{opened.error().code, "--rdzv-conf: " + opened.error().context};
  }
  if (options.has("token-file") || !from_variable.empty()) {
    auto token = options.has("token-file") ? read_token_file(options.text("token-file"))
                                           : checked_token(std::move(from_variable), std::string{token_variable});
    if (!token) return token.error();
    plan.rendezvous.token = *std::move(token);
  } else {
    auto token = read_credential_token();
    if (!token) return token.error();
    plan.rendezvous.token = *std::move(token);
  }
  if (!plan.rendezvous.token.empty()) {
    if (auto prepared = prepare_proofs(); !prepared) return prepared;
  }
  if (!options.has("read-token-file")) return {};
  auto token = read_token_file(options.text("read-token-file"));
  if (!token) return Error{token.error().code, "--read-token-file: " + token.error().context};
  plan.operations.read_token = *std::move(token);
  return {};
}

}  // namespace torchup
