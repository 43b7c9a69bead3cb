#include "rendezvous/net/io/openssl.hpp"

#include <dlfcn.h>

#include <optional>
#include <string>

namespace torchup {
namespace {

Result<OpenSsl> look_up_all() {
  // libssl brings the libcrypto that it belongs to; what is looked up in the one is found in the other too.
  void* const library = ::dlopen("libssl.so.3", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    return fail(errc::refused,
                std::string{"encrypted connections (a job token, --tls-cert) need OpenSSL 3: "} + ::dlerror());
  }
  OpenSsl functions;
  std::string missing;
#define TORCHUP_LOOK_UP(name)                                                    \
  functions.name = reinterpret_cast<decltype(&::name)>(::dlsym(library, #name)); \
  if (!functions.name) missing = #name;
  TORCHUP_OPENSSL_FUNCTIONS(TORCHUP_LOOK_UP)
#undef TORCHUP_LOOK_UP
  if (!missing.empty()) return fail(errc::refused, "libssl.so.3 lacks " + missing);
  return functions;
}

}  // namespace

Result<const OpenSsl*> OpenSsl::load() {
  static const Result<OpenSsl> functions = look_up_all();
  if (!functions) return functions.error();
  return &*functions;
}

}  // namespace torchup
