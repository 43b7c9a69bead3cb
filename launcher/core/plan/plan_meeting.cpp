#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "launcher/core/options/rendezvous_conf.hpp"
#include "launcher/core/plan/plan_steps.hpp"
#include "launcher/core/scheduler/derived_options.hpp"
#include "launcher/core/text/python_numbers.hpp"
#include "launcher/core/text/text.hpp"
#include "rendezvous/core/link/agent_codec.hpp"
#include "rendezvous/core/text/endpoint_list.hpp"
#include "rendezvous/core/text/hostlist.hpp"
#include "rendezvous/core/text/names.hpp"

namespace torchup {
namespace {

constexpr Port static_default_port{29500};

/// A UUID as the decimal number that it is.
std::string decimal(std::string_view uuid) {
  std::string digits = "0";  // least significant first
  for (const char c : uuid) {
    if (c == '-') continue;
    int carry = c <= '9' ? c - '0' : c - 'a' + 10;
    for (char& digit : digits) {
      const int value = (digit - '0') * 16 + carry;
      digit = static_cast<char>('0' + value % 10);
      carry = value / 10;
    }
    for (; carry > 0; carry /= 10) digits += static_cast<char>('0' + carry % 10);
  }
  return {digits.rbegin(), digits.rend()};
}

Result<> read_node_counts(const OptionValues& options, JobTerms& terms) {
  const std::string text = options.text("nnodes", "1:1");
  std::vector<std::int64_t> fields;
  for (const std::string_view field : split(text, ':')) {
    const auto number = python_int(field);
    if (!number) return bad(fmt::format("--nnodes={}: invalid literal for int() with base 10: '{}'", text, field));
    fields.push_back(*number);
  }
  if (fields.size() > 2) return bad(fmt::format("nnodes={} is not in \"MIN:MAX\" format", text));
  const std::int64_t least = fields.front();
  const std::int64_t most = fields.back();
  if (least > nodes_max) return bad(fmt::format("--nnodes={}: a job has {} nodes at most", text, nodes_max));
  if (least < 1 || least > most) {
    return bad(fmt::format("min_nodes must be > 0 and <= max_nodes, got min_nodes={}, max_nodes={}", least, most));
  }
  terms.min_nodes = static_cast<int>(least);
  terms.max_nodes = static_cast<int>(std::min<std::int64_t>(most, nodes_max));
  return {};
}

Result<> check_backend(const std::string& backend) {
  if (backend == "etcd-v2") {
    return bad("--rdzv-backend=etcd-v2 speaks etcd's v2 API, which etcd 3.6 no longer has; use --rdzv-backend=etcd");
  }
  if (backend.empty()) return bad("The rendezvous backend name must be a non-empty string.");
  if (backend != "static" && backend != "c10d" && backend != "etcd") {
    return bad(
        fmt::format("The rendezvous backend '{}' is not registered. Did you forget to call `register`? There are c10d, "
                    "etcd and static.",
                    backend));
  }
  return {};
}

Result<Endpoint> static_endpoint(const OptionValues& options, const std::string& given) {
  if (given.empty()) {
    const std::int64_t port = options.integer("master-port", static_default_port.value()).value();
    if (port < 0 || port > std::numeric_limits<std::uint16_t>::max()) {
      return bad(fmt::format("--master-port={} is not a port, which goes from 0 to 65535", port));
    }
    return Endpoint{options.text("master-addr", "127.0.0.1"), Port{static_cast<std::uint16_t>(port)}};
  }
  if (given.find(':') == std::string::npos) {
    return bad(fmt::format("port is missing in endpoint: {}. Try to specify --master-port", given));
  }
  return parse_endpoint(given, static_default_port);
}

Result<> read_static(const OptionValues& options, const std::string& given, LaunchConfig& plan) {
  plan.rendezvous.backend = Backend::static_;
  auto endpoint = static_endpoint(options, given);
  if (!endpoint) return endpoint.error();
  plan.rendezvous.endpoint = *endpoint;
  const std::int64_t rank = options.integer("node-rank", 0).value();
  if (rank < 0 || rank >= plan.terms.max_nodes) {
    return bad(
        fmt::format("--node-rank={} must be from 0 to {}, one less than --nnodes", rank, plan.terms.max_nodes - 1));
  }
  plan.rendezvous.group_rank = GroupRank{static_cast<int>(rank)};
  plan.terms.min_nodes = plan.terms.max_nodes;
  return {};
}

/// One node that needs no port that others know.
Result<> meet_here(const PlanSource& source, LaunchConfig& plan) {
  const bool named = source.options.has("rdzv-id");  // by hand, or by a scheduler
  const bool ignored = source.options.given("rdzv-id") && source.options.flag("standalone");  // as torchrun
  if (!named || ignored) plan.rendezvous.run_id = RunId{source.machine.random_run_id()};
  if (source.options.flag("standalone") && plan.terms.max_nodes > 1) {
    return bad(
        fmt::format("--standalone means one node, but --nnodes={} asks for more", source.options.text("nnodes")));
  }
  return {};
}

/// Of a value that no option has, but a scheduler's variable.
Error with_source(const OptionValues& options, std::string_view name, Error error) {
  if (options.given(name)) return error;
  return bad(fmt::format("{}: {}; --{} gives another, --scheduler=none starts without the scheduler's variables",
                         options.source(name), error.context, name));
}

Result<> meet_at(const OptionValues& options, const std::string& backend, LaunchConfig& plan) {
  if (auto known = check_backend(backend); !known) return known;
  const std::string endpoint = options.text("rdzv-endpoint");
  if (backend == "static") return read_static(options, endpoint, plan);
  const bool in_etcd = backend == "etcd";
  auto parsed = parse_endpoints(endpoint, in_etcd ? etcd_default_port : c10d_default_port);
  if (!parsed) return with_source(options, "rdzv-endpoint", parsed.error());
  if (in_etcd) {
    plan.rendezvous.etcd.emplace().members = *std::move(parsed);
    return {};
  }
  plan.rendezvous.endpoint = parsed->front();
  if (parsed->size() > 1) plan.rendezvous.endpoints = *std::move(parsed);
  return {};
}

Result<> check_run_id(const PlanSource& source, LaunchConfig& plan) {
  RunId& id = plan.rendezvous.run_id;
  if (id.value().empty()) {
    id = RunId{decimal(source.machine.random_run_id())};
    warn(plan, fmt::format("config has no run_id, generated a random run_id: {}", id.value()));
  }
  const auto why = why_no_name(id.value());
  if (why.empty()) return {};
  if (source.options.given("rdzv-id")) return bad(fmt::format("--rdzv-id cannot be used: {}; take a short name", why));
  return with_source(source.options, "rdzv-id", bad(fmt::format("the run id cannot be used: {}", why)));
}

/// All nodes compare it, and so much of it goes over the wire.
Result<> read_hosts(const OptionValues& options, JobTerms& terms) {
  terms.hostlist = options.text("expect-hosts");
  if (terms.hostlist.size() > text_bytes_max) {
    return bad(
        fmt::format("--expect-hosts: {} bytes are more than the {} that other nodes get; write ranges: node[1-9]",
                    terms.hostlist.size(), text_bytes_max));
  }
  const auto hosts = expand_hostlist(terms.hostlist);
  if (hosts) return {};
  return bad(fmt::format("--expect-hosts={}: {}", terms.hostlist, hosts.error().message()));
}

/// Who is expected, and in which order ranks are given.
Result<> read_order(const OptionValues& options, LaunchConfig& plan) {
  JobTerms& terms = plan.terms;
  auto multiple = options.integer("nnodes-multiple-of", 1);
  if (!multiple) return multiple.error();
  if (*multiple < 1) return bad("--nnodes-multiple-of must be >= 1");
  if (*multiple > terms.max_nodes) {
    return bad(fmt::format("--nnodes-multiple-of={} is more than --nnodes allows, {}", *multiple, terms.max_nodes));
  }
  terms.nodes_multiple_of = static_cast<int>(*multiple);
  if (auto read = read_hosts(options, terms); !read) return read;
  const std::string order = options.text("rank-order", "address");
  terms.rank_order = order == "join" ? RankOrder::join : order == "hostlist" ? RankOrder::hostlist : RankOrder::address;
  if (order == by_index && plan.rendezvous.backend == Backend::c10d) {
    terms.rank_order = RankOrder::index;
    plan.rendezvous.group_rank = GroupRank{*plan.scheduler.node};
  }
  if (terms.rank_order == RankOrder::hostlist && terms.hostlist.empty()) {
    return bad("--rank-order=hostlist needs a list of hosts: --expect-hosts, or a scheduler that has one");
  }
  return {};
}

Result<etcd::Conf> read_etcd_conf(const std::string& text) {
  auto items = etcd::split_conf(text);
  auto conf = items ? etcd::read_conf(*items) : Result<etcd::Conf>{items.error()};
  if (!conf) return bad("--rdzv-conf: " + conf.error().context);
  return conf;
}

}  // namespace

Result<> plan_backend(const PlanSource& source, LaunchConfig& plan) {
  const auto& [options, words, legacy, machine] = source;
  RendezvousConfig& meeting = plan.rendezvous;
  meeting.run_id = RunId{options.text("rdzv-id", "none")};
  plan.terms.own_run_id = plan.scheduler.own_run && !options.given("rdzv-id");
  meeting.local_addr = options.text("local-addr");
  meeting.is_host = plan.scheduler.is_host;
  if (options.has("allow")) {
    auto allowed = SourceList::read(options.text("allow"));
    if (!allowed) return bad(fmt::format("--allow: {}", allowed.error().message()));
    meeting.allowed = *std::move(allowed);
  }
  if (auto read = read_node_counts(options, plan.terms); !read) return read;
  const std::string backend = options.text("rdzv-backend", "static");
  const bool plain = backend == "static" && options.text("rdzv-endpoint").empty() && !options.has("master-port") &&
                     plan.terms.max_nodes == 1;
  const bool here = options.flag("standalone") || plain;
  if (auto met = here ? meet_here(source, plan) : meet_at(options, backend, plan); !met) return met;
  if (auto checked = check_run_id(source, plan); !checked) return checked;
  plan.terms.store_proxy = options.flag("store-proxy");
  if (plan.terms.store_proxy && meeting.backend == Backend::static_ && plan.terms.max_nodes > 1) {
    return bad(
        "--store-proxy does not go with the static rendezvous, whose MASTER_ADDR is the endpoint's own: use "
        "--rdzv-backend=c10d");
  }
  if (plan.terms.store_proxy && machine.variable("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") == "1") {
    return bad("--store-proxy needs a store that the agents serve: unset TORCH_DISABLE_SHARE_RDZV_TCP_STORE");
  }
  if (meeting.backend != Backend::static_ && options.given("node-rank") &&
      options.integer("node-rank", 0).value() != 0) {
    warn(plan, fmt::format("node_rank is only used for static rdzv_backend. It will be ignored for rdzv_backend={}.",
                           here ? "c10d" : backend));
  }
  return {};
}

Result<> plan_nodes(const PlanSource& source, LaunchConfig& plan) {
  const OptionValues& options = source.options;
  auto restarts = options.integer("max-restarts", 0);
  if (!restarts) return restarts.error();
  if (*restarts < 0) return bad("max_restarts must be >= 0");
  plan.terms.max_restarts = static_cast<int>(std::min<std::int64_t>(*restarts, restarts_max));
  plan.role = options.text("role", "default");
  auto lease = options.number("lease", 10);
  if (!lease) return lease.error();
  if (*lease < 0.1) return bad("--lease must be at least 0.1 seconds");
  plan.terms.lease = seconds_of(*lease);
  if (auto order = read_order(options, plan); !order) return order;
  plan.set_socket_ifname = options.flag("set-socket-ifname");
  const std::string same = options.text("same-world", "warn");
  plan.terms.same_world = same == "off" ? SameWorld::off : same == "fail" ? SameWorld::fail : SameWorld::warn;
  if (plan.rendezvous.backend == Backend::c10d && !plan.rendezvous.etcd && plan.terms.max_nodes > 1 &&
      options.text("rdzv-endpoint").empty()) {
    warn(plan, "master_addr is only used for static rdzv_backend and when rdzv_endpoint is not specified.");
  }
  return {};
}

Result<> plan_conf(const PlanSource& source, LaunchConfig& plan) {
  const std::string text = source.options.text("rdzv-conf");
  const bool is_static = plan.rendezvous.backend == Backend::static_;
  const auto conf = is_static ? read_static_conf(text) : read_c10d_conf(text);
  if (!conf) return conf.error();
  if (is_static) plan.terms.join_timeout = std::chrono::seconds{900};
  if (conf->is_host) plan.rendezvous.is_host = *conf->is_host;
  if (plan.rendezvous.is_host == true && !plan.rendezvous.endpoints.empty() && conf->is_host) {
    return bad(
        "--rdzv-conf: is_host=1 does not go with several endpoints, which are torchupd's: name one, or leave it "
        "out");
  }
  if (plan.rendezvous.etcd) {
    auto read = read_etcd_conf(text);
    if (!read) return read.error();
    plan.rendezvous.etcd->conf = *std::move(read);
  }
  if (conf->join_timeout) plan.terms.join_timeout = *conf->join_timeout;
  if (conf->last_call) plan.terms.last_call = *conf->last_call;
  if (conf->lease) plan.terms.lease = *conf->lease;
  return {};
}

}  // namespace torchup
