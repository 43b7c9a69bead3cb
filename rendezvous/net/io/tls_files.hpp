#pragma once

#include <memory>
#include <string>
#include <utility>

#include "rendezvous/base/result.hpp"
#include "rendezvous/base/types.hpp"
#include "rendezvous/core/text/log_line.hpp"
#include "rendezvous/net/io/tls.hpp"

namespace torchup {

/// What a port's TLS is spoken with: the token, and a certificate whose files may change while it is served.
class TlsFiles {
 public:
  /// Errors: those of TlsContext::server.
  [[nodiscard]] static Result<std::shared_ptr<TlsFiles>> open(TlsContext::Server settings, LogSink log);

  /// For a connection that comes now. The files are looked at once a second at most; a new pair that does not fit is
  /// told of, and the old one stays.
  [[nodiscard]] std::shared_ptr<const TlsContext> context();

 private:
  /// What tells one file from the one that was there before: neither is read for that.
  using Mark = std::string;

  TlsFiles(TlsContext::Server settings, LogSink log) : settings_{std::move(settings)}, log_{std::move(log)} {}
  [[nodiscard]] Mark mark() const;

  TlsContext::Server settings_;
  LogSink log_;
  Mark mark_;
  TimePoint looked_at_{};
  std::shared_ptr<const TlsContext> context_;
};

}  // namespace torchup
