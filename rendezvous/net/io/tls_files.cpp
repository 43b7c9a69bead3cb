#include "rendezvous/net/io/tls_files.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <chrono>

namespace torchup {

namespace {
constexpr Duration looks_apart = std::chrono::seconds{1};
}

Result<std::shared_ptr<TlsFiles>> TlsFiles::open(TlsContext::Server settings, LogSink log) {
  std::shared_ptr<TlsFiles> files{new TlsFiles{std::move(settings), std::move(log)}};
  files->mark_ = files->mark();
  files->looked_at_ = std::chrono::steady_clock::now();
  auto context = TlsContext::server(files->settings_);
  if (!context) return context.error();
  files->context_ = *std::move(context);
  return files;
}

TlsFiles::Mark TlsFiles::mark() const {
  Mark mark;
  for (const std::string* path : {&settings_.cert_file, &settings_.key_file}) {
    struct stat status {};
    if (path->empty() || ::stat(path->c_str(), &status) != 0) continue;  // between its end and its successor, perhaps
    mark += fmt::format("{}:{}:{}:{}.{} ", status.st_dev, status.st_ino, status.st_size, status.st_mtim.tv_sec,
                        status.st_mtim.tv_nsec);
  }
  return mark;
}

std::shared_ptr<const TlsContext> TlsFiles::context() {
  const TimePoint now = std::chrono::steady_clock::now();
  if (settings_.cert_file.empty() || now - looked_at_ < looks_apart) return context_;
  looked_at_ = now;
  Mark found = mark();
  if (found == mark_) return context_;
  mark_ = std::move(found);
  auto renewed = TlsContext::server(settings_);
  if (renewed) context_ = *std::move(renewed);
  if (log_ && renewed) log_(LogLine{LogLevel::info, "certificate " + settings_.cert_file + " was read again"});
  if (log_ && !renewed) {
    log_(
        LogLine{LogLevel::warning, "the new certificate is not used, the old one stays: " + renewed.error().message()});
  }
  return context_;
}

}  // namespace torchup
