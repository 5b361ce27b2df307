#include "tools/cluster.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <string_view>

#include "base/check.h"
#include "cachalot/errors.h"
#include "cachalot/version.h"

namespace cachalot::tools {
namespace {

PythonServer::Start start_of(const std::string& python, const std::string& scheduler) {
  const std::string code = fmt::format("from cachalot_simulator.dask_runs import serve; serve({}, {})",
                                       PythonServer::kSocket, PythonServer::kFile);
  return {.words = {python, "-c", code},
          .environment = environment_of_helper(),
          .text = nlohmann::json({{"scheduler", scheduler}, {"version", CACHALOT_VERSION_STRING}}).dump()};
}

// The text of a reply "<what> <text>". Throws InvalidArgument for "failed <text>" and where there is no reply.
std::string reply_of(const std::optional<Descriptor>& replies, std::string_view what) {
  const std::optional<std::string> line = replies ? read_line(replies->number()) : std::nullopt;
  CACHALOT_REQUIRE(line, "the process that asks the Dask scheduler has ended");
  const std::size_t space = line->find(' ');
  std::string text = space == std::string::npos ? "" : line->substr(space + 1);
  CACHALOT_REQUIRE(line->substr(0, space) == what, "{}", text);
  return text;
}

// Of a `cachalot simulate` that records a run as the options say.
std::vector<std::string> words_of_record(const SimulationOptions& options) {
  std::vector<std::string> words;
  const auto add = [&](const char* name, const std::string& value) {
    words.push_back(fmt::format("--{}={}", name, value));
  };
  if (options.gpu) add("gpu", *options.gpu);
  if (options.memory) add("memory", *options.memory);
  if (options.context) add("context", *options.context);
  add("devices", std::to_string(options.devices));
  if (options.rank) {
    add("world-size", std::to_string(options.rank->world_size));
    add("rank", std::to_string(options.rank->rank));
    add("local-rank", std::to_string(options.rank->local_rank));
  }
  add("compute", options.compute);
  add("unknown", options.unknown);
  if (options.max_steps) add("max-steps", std::to_string(*options.max_steps));
  if (options.max_seconds) add("max-seconds", fmt::format("{}", *options.max_seconds));
  words.emplace_back("--");
  words.insert(words.end(), options.program.begin(), options.program.end());
  return words;
}

}  // namespace

Cluster::Cluster(const std::string& python, const std::string& scheduler) : server_(start_of(python, scheduler)) {
  const std::string places = reply_of(server_.ask({{"ask", "places"}}, {}), "places");
  std::from_chars(places.data(), places.data() + places.size(), places_);
}

void Cluster::record(const SimulationOptions& options, const std::filesystem::path& folder) {
  const std::optional<Descriptor> replies = server_.ask({{"words", words_of_record(options)},
                                                         {"folder", std::filesystem::current_path().string()},
                                                         {"reports", folder.string()}},
                                                        {});
  if (replies) wait_for_line(replies->number(), options.stop);
  reply_of(replies, "done");
}

std::string Cluster::advise(const std::vector<std::string>& options, const std::string& file, bool sends_file) {
  const std::optional<Descriptor> replies = server_.ask({{"advise", options},
                                                         {"folder", std::filesystem::current_path().string()},
                                                         {"file", file},
                                                         {"sends_file", sends_file}},
                                                        {});
  std::string text;
  for (auto left = std::stoull(reply_of(replies, "lines")); left > 0; --left) {
    const std::optional<std::string> line = read_line(replies->number());
    CACHALOT_REQUIRE(line, "the process that asks the Dask scheduler has ended");
    text += *line + "\n";
  }
  return text;
}

}  // namespace cachalot::tools
