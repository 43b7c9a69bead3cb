#include "rendezvous/core/etcd/etcd_fields.hpp"

#include <fmt/format.h>

#include "rendezvous/core/text/base64.hpp"

namespace torchup::etcd {

Result<nlohmann::json> parse_object(std::string_view bytes, std::size_t bytes_max) {
  using nlohmann::json;
  if (bytes.size() > bytes_max) {
    return fail(errc::limit_exceeded, fmt::format("it is longer than {} bytes", bytes_max));
  }
  bool deep = false;
  const auto within = [&deep](int depth, json::parse_event_t, const json&) {
    deep = deep || depth > json_depth_max;
    return depth <= json_depth_max;
  };
  json value = json::parse(bytes, within, /*allow_exceptions=*/false);
  if (deep) return fail(errc::bad_frame, fmt::format("it is nested deeper than {} levels", json_depth_max));
  if (value.is_discarded()) return fail(errc::bad_frame, "it is not JSON");
  if (!value.is_object()) return fail(errc::bad_frame, "it is no JSON object");
  return value;
}

const nlohmann::json* Fields::member(const char* name, json::value_t kind, const char* kind_name) {
  if (error_) return nullptr;
  const auto found = object_->find(name);
  if (found == object_->end() || found->is_null()) return nullptr;
  if (found->type() == kind) return &*found;
  wrong(fmt::format("{} is no {}", name, kind_name));
  return nullptr;
}

std::int64_t Fields::plain_number(const char* name) {
  if (error_) return 0;
  const auto found = object_->find(name);
  const bool whole = found != object_->end() && found->is_number_integer();
  if (whole && (!found->is_number_unsigned() || found->get<std::uint64_t>() <= INT64_MAX)) {
    return found->get<std::int64_t>();
  }
  wrong(fmt::format("{} is no number", name));
  return 0;
}

std::string_view Fields::text(const char* name) {
  const json* value = member(name, json::value_t::string, "string");
  return value == nullptr ? std::string_view{} : value->get_ref<const std::string&>();
}

std::string Fields::bytes(const char* name) {
  const std::string_view letters = text(name);
  auto value = from_base64(letters);
  if (value && to_base64(*value) == letters) return std::move(*value);
  wrong(fmt::format("{} is no base64", name));
  return {};
}

bool Fields::flag(const char* name) {
  const json* value = member(name, json::value_t::boolean, "boolean");
  return value != nullptr && value->get<bool>();
}

const nlohmann::json* Fields::object(const char* name) { return member(name, json::value_t::object, "object"); }

const nlohmann::json& Fields::array(const char* name) {
  static const json none = json::array();
  const json* value = member(name, json::value_t::array, "list");
  return value == nullptr ? none : *value;
}

}  // namespace torchup::etcd
