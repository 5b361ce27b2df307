#include "tools/history/readers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <istream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <streambuf>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cachalot/errors.h"
#include "tools/base/quoted.h"
#include "tools/history/snapshot_builder.h"

namespace cachalot::tools {
namespace {

// An InputFile as a stream for parsers. It ends where the memory for the file would: a parser holds what it cannot yet give us.
class FileStream : public std::streambuf {
 public:
  explicit FileStream(InputFile& file) : file_(file), left_(file.memory_limit() / 4) {}
  bool is_too_long() const { return left_ == 0; }
  // Returns how many bytes the parser has taken.
  std::size_t position() const { return before_ + static_cast<std::size_t>(gptr() - eback()); }

 protected:
  int_type underflow() override {
    const std::size_t bytes = file_.read(buffer_.data(), std::min(buffer_.size(), left_));
    left_ -= bytes;
    before_ = position();
    setg(buffer_.data(), buffer_.data(), buffer_.data() + bytes);
    return bytes == 0 ? traits_type::eof() : traits_type::to_int_type(*gptr());
  }

 private:
  InputFile& file_;
  std::size_t left_;
  std::size_t before_ = 0;  // bytes of earlier buffers
  std::array<char, 1 << 16> buffer_;
};

// Protocol 2 and later begin with PROTO; the dicts and lists of 0 and 1 with a mark or with themselves.
bool begins_pickle(unsigned char byte) {
  const std::string_view first = "\x80(}]";
  return first.find(static_cast<char>(byte)) != std::string_view::npos;
}

// A list in JSON begins with '[', one in a pickle with ']'.
bool begins_json(unsigned char byte) { return byte == '{' || byte == '['; }

// Throws InvalidArgument, which says what the file is, unless it begins as a snapshot.
void require_snapshot(InputFile& file) {
  const std::optional<unsigned char> first = file.peek();
  const std::string trouble = file.trouble();
  CACHALOT_REQUIRE(trouble.empty(), "{}: {}", file.path(), trouble);
  CACHALOT_REQUIRE(first.has_value(), "{}: the file is empty", file.path());
  const std::string foreign = foreign_format(file.begin(), "memory snapshot");
  CACHALOT_REQUIRE(foreign.empty(), "{}: {}", file.path(), foreign);
  const std::optional<HistoryFormat> text = text_format(file.begin());
  CACHALOT_REQUIRE(text != HistoryFormat::cachalot_trace,
                   "{}: is an allocation trace, not a memory snapshot: `cachalot replay` takes traces", file.path());
  CACHALOT_REQUIRE(text != HistoryFormat::rmm_csv,
                   "{}: is a log of RMM, not a memory snapshot: `cachalot replay` takes logs", file.path());
  CACHALOT_REQUIRE(is_snapshot(file), "{}: {}", file.path(), unknown_format(file.begin()));
}

// Takes what nlohmann's parser sees. A list or dict goes into what holds it when it ends. It keeps its own stack and does
// not recurse, as the parser does not.
class SnapshotSax : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit SnapshotSax(SnapshotBuilder& builder) : builder_(builder) {}

  bool null() override { return add({}); }
  bool boolean(bool value) override { return add(Part::of_boolean(value)); }
  bool number_integer(number_integer_t value) override { return add(Part::of_integer(value)); }
  bool number_unsigned(number_unsigned_t value) override { return add(Part::of_natural(value)); }
  bool number_float(number_float_t value, const string_t&) override { return add(Part::of_real(value)); }
  bool string(string_t& value) override { return add(builder_.text(value)); }
  bool binary(binary_t&) override { return false; }  // of other formats than JSON
  bool start_object(std::size_t) override { return open(Container::Kind::dict); }
  bool key(string_t& value) override {
    open_.back().key = builder_.text(value);
    return true;
  }
  bool end_object() override { return close(); }
  bool start_array(std::size_t) override { return open(Container::Kind::list); }
  bool end_array() override { return close(); }
  bool parse_error(std::size_t position, const std::string& last, const nlohmann::json::exception&) override {
    trouble_ = fmt::format("byte {}: this is not JSON: {}", position, Quoted{last});
    return false;
  }

  const std::string& trouble() const { return trouble_; }
  Part root() const { return root_; }

 private:
  struct Open {
    Part part;
    Part key;  // the newest, of a dict
    bool is_dict = false;
  };

  bool add(Part part) {
    if (open_.empty()) {
      root_ = part;
    } else if (const Open& parent = open_.back(); parent.is_dict) {
      builder_.set(parent.part, parent.key, part);
    } else {
      builder_.append(parent.part, part);
    }
    return true;
  }
  bool open(Container::Kind kind) {
    if (open_.size() == open_.capacity()) builder_.budget().charge((open_.size() + 1) * sizeof(Open));
    open_.push_back({builder_.parts().open(kind), {}, kind == Container::Kind::dict});
    return true;
  }
  bool close() {
    const Part part = open_.back().part;
    open_.pop_back();
    return add(part);
  }

  SnapshotBuilder& builder_;
  std::vector<Open> open_;
  std::string trouble_;
  Part root_;
};

// Reads one JSON text, which fills the file, into the builder, and returns what it is. Throws InvalidArgument, which names
// position and rule.
Part read_snapshot_json(InputFile& file, SnapshotBuilder& builder) {
  SnapshotSax sax(builder);
  FileStream buffer(file);
  std::istream stream(&buffer);
  try {
    nlohmann::json::sax_parse(stream, &sax);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("byte {}: {}", buffer.position(), error.what()));
  }
  CACHALOT_REQUIRE(file.trouble().empty(), "{}", file.trouble());
  CACHALOT_REQUIRE(!buffer.is_too_long(), "longer than the most for a file of its size");
  CACHALOT_REQUIRE(sax.trouble().empty(), "{}", sax.trouble());
  return sax.root();
}

History of_json(InputFile file) {
  SnapshotBuilder builder(file.memory_limit());
  try {
    const Part root = read_snapshot_json(file, builder);
    return builder.finish(root);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: {}", file.path(), error.what()));
  }
}

using Json = nlohmann::json;

// Takes what `cachalot convert --to json` writes (docs/tools/convert.md has its keys): each item of a list as soon as it is read, so
// that no more than one is held. Tables come before what names their places.
class HistoryJson {
 public:
  using Event = Json::parse_event_t;

  // Returns false for a value that was taken; nlohmann's parser then forgets it.
  bool take(int depth, Event event, const Json& parsed) {
    if (event == Event::key && depth == 1) section_ = parsed.get<std::string>();
    CACHALOT_REQUIRE(section_ != "devices" || !stacks_.empty(), "{}", kTablesComeFirst);
    if (event == Event::key && depth == 3) part_ = parsed.get<std::string>();
    const bool of_device = section_ == "devices" || section_ == "host";
    if (event == Event::object_start && depth == 2 && of_device) devices().emplace_back();
    if (event == Event::key || event == Event::object_start || event == Event::array_start) return true;
    if (depth == 1) take_value(parsed);
    CACHALOT_REQUIRE(!of_device || depth < 3 || !devices().empty(), "an item of '{}' is no object", section_);
    if (depth == 3 && of_device && part_ == "device") devices().back().device = natural<int>(parsed, kMostDevices);
    const bool is_item = depth == (of_device ? 4 : 2);
    if (!is_item) return true;
    if (!of_device) take_item(parsed);
    if (of_device && part_ == "events") take_event(parsed);
    if (of_device && part_ == "segments") take_segment(parsed);
    return false;
  }

  History finish() {
    CACHALOT_REQUIRE(version_ == 1, "a history of version {}; this cachalot reads version 1", version_);
    return std::move(history_);
  }

 private:
  static constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 47;  // addresses, too
  static constexpr std::uint64_t kMostDevices = 1 << 16;
  static constexpr std::uint64_t kAny = std::numeric_limits<std::uint64_t>::max();

  template <typename Number>
  static Number natural(const Json& json, std::uint64_t most = kMostBytes) {
    CACHALOT_REQUIRE(json.is_number_unsigned() && json.get<std::uint64_t>() <= most,
                     "{} is no whole number of at most {}", fmt::format("{}", Quoted{json.dump()}), most);
    return static_cast<Number>(json.get<std::uint64_t>());
  }
  template <typename Id>
  static Id place(const Json& json, const std::vector<Id>& ids, const char* table) {
    const auto number = natural<std::size_t>(json);
    CACHALOT_REQUIRE(number < ids.size(), "place {} of '{}', which has {}", number, table, ids.size());
    return ids[number];
  }

  std::vector<DeviceHistory>& devices() { return section_ == "host" ? history_.host : history_.devices; }
  TextId text(const Json& json) { return history_.texts.add(json.get_ref<const std::string&>()); }
  TextId text_if_any(const Json& json, const char* key) { return json.contains(key) ? text(json.at(key)) : 0; }
  static PoolId pool_of(const Json& pair) {
    return {natural<std::uint64_t>(pair.at(0), kAny), natural<std::uint64_t>(pair.at(1), kAny)};
  }

  void take_value(const Json& json) {
    if (section_ == "version") version_ = natural<int>(json, std::numeric_limits<int>::max());
    if (section_ == "settings") history_.settings = json.get<std::string>();
    if (section_ == "unknown_actions") history_.unknown_actions = natural<std::size_t>(json);
  }

  void take_item(const Json& json) {
    if (section_ == "streams") streams_.push_back(history_.streams.add(natural<std::uint64_t>(json, kAny)));
    if (section_ == "pools") pools_.push_back(history_.pools.add(pool_of(json)));
    if (section_ == "frames")
      frames_.push_back(history_.stacks.add_frame({.file = text(json.at("file")),
                                                   .function = text(json.at("function")),
                                                   .line = natural<std::uint32_t>(json.at("line"), kNoLine),
                                                   .node = text(json.at("node"))}));
    if (section_ == "stacks") {
      std::vector<FrameId> calls;
      for (const Json& frame : json) calls.push_back(place(frame, frames_, "frames"));
      stacks_.push_back(history_.stacks.add(calls));
    }
    if (section_ == "details")
      details_.push_back(history_.details.add({.forward_stack = place(json.at("forward_stack"), stacks_, "stacks"),
                                               .compile_context = text(json.at("compile_context")),
                                               .user_metadata = text(json.at("user_metadata")),
                                               .internal_metadata = text(json.at("internal_metadata"))}));
    if (section_ == "stages")
      history_.stages.push_back({.time_us = json.at("time_us").get<std::int64_t>(),
                                 .name = text(json.at("name")),
                                 .device = natural<int>(json.at("device"), kMostDevices),
                                 .begins = json.at("begins").get<bool>()});
    if (section_ == "facts") take_facts(json);
  }

  void take_facts(const Json& json) {
    const auto known = [&](const char* key) -> std::optional<std::uint64_t> {
      if (json.at(key).is_null()) return std::nullopt;
      return natural<std::uint64_t>(json.at(key));
    };
    history_.facts.push_back({.device = natural<int>(json.at("device"), kMostDevices),
                              .name = json.at("name").get<std::string>(),
                              .total_bytes = known("total_bytes"),
                              .free_bytes = known("free_bytes"),
                              .limit_bytes = known("limit_bytes"),
                              .nccl_bytes = known("nccl_bytes"),
                              .context_bytes = known("context_bytes"),
                              .process_bytes = known("process_bytes"),
                              .other_processes = {},
                              .failing = failing_of(json)});
    for (const Json& process : json.at("other_processes"))
      history_.facts.back().other_processes.push_back({.id = natural<std::uint64_t>(process.at("process")),
                                                       .bytes = natural<std::uint64_t>(process.at("bytes")),
                                                       .name = process.at("name").get<std::string>()});
  }

  static std::optional<DeviceFacts::Failing> failing_of(const Json& facts) {
    const auto found = facts.find("failing");
    if (found == facts.end() || found->is_null()) return std::nullopt;
    DeviceFacts::Failing failing{.who = found->at("who").get<std::string>(),
                                 .segment_bytes = natural<std::uint64_t>(found->at("segment_bytes")),
                                 .has_pages = found->at("has_pages").get<bool>(),
                                 .is_refused = found->at("is_refused").get<bool>(),
                                 .has_nccl = found->at("has_nccl").get<bool>(),
                                 .knows_owners = found->at("knows_owners").get<bool>()};
    for (const Json& tag : found->at("tags"))
      failing.tags.push_back({.pool = pool_of(tag.at("pool")), .name = tag.at("name").get<std::string>()});
    for (const Json& library : found->at("libraries"))
      failing.libraries.push_back(
          {.name = library.at("name").get<std::string>(), .bytes = natural<std::uint64_t>(library.at("bytes"))});
    return failing;
  }

  void take_event(const Json& json) {
    const std::string& name = json.at("action").get_ref<const std::string&>();
    auto action = HistoryEvent::Action::alloc;
    while (name != name_of(action) && action != HistoryEvent::Action::annotate)
      action = static_cast<HistoryEvent::Action>(static_cast<int>(action) + 1);
    CACHALOT_REQUIRE(name == name_of(action), "no action is {}", fmt::format("{}", Quoted{name}));
    const char* const address = action == HistoryEvent::Action::oom ? "device_free_bytes" : "address";
    devices().back().events.push_back({.address = natural<Address>(json.at(address)),
                                       .bytes = natural<std::uint64_t>(json.at("bytes")),
                                       .time_us = json.at("time_us").get<std::int64_t>(),
                                       .stack = place(json.at("stack"), stacks_, "stacks"),
                                       .details = place(json.at("details"), details_, "details"),
                                       .stream = place(json.at("stream"), streams_, "streams"),
                                       .pool = place(json.at("pool"), pools_, "pools"),
                                       .action = action});
  }

  void take_segment(const Json& json) {
    DeviceHistory& device = devices().back();
    HistorySegment segment{.address = natural<Address>(json.at("address")),
                           .bytes = natural<std::uint64_t>(json.at("bytes")),
                           .first_block = device.blocks.size(),
                           .block_count = json.at("blocks").size(),
                           .stack = place(json.at("stack"), stacks_, "stacks"),
                           .stream = place(json.at("stream"), streams_, "streams"),
                           .pool = place(json.at("pool"), pools_, "pools"),
                           .is_small = json.at("is_small").get<bool>(),
                           .is_expandable = json.at("is_expandable").get<bool>()};
    if (json.value("is_asleep", false)) {
      segment.block_count = 0;
      device.asleep.push_back(segment);
      return;
    }
    std::uint64_t left = segment.bytes;
    for (const Json& each : json.at("blocks")) {
      const auto state = std::ranges::find(kBlockStates, each.at("state").get_ref<const std::string&>());
      CACHALOT_REQUIRE(state != kBlockStates.end(), "no state is {}",
                       fmt::format("{}", Quoted{each.at("state").dump()}));
      device.blocks.push_back({.address = natural<Address>(each.at("address")),
                               .bytes = natural<std::uint64_t>(each.at("bytes"), left),
                               .requested_bytes = natural<std::uint64_t>(each.at("requested_bytes")),
                               .stack = place(each.at("stack"), stacks_, "stacks"),
                               .details = place(each.at("details"), details_, "details"),
                               .owner = text_if_any(each, "owner"),
                               .owner_kind = text_if_any(each, "owner_kind"),
                               .state = static_cast<HistoryBlock::State>(state - kBlockStates.begin())});
      left -= device.blocks.back().bytes;
    }
    device.segments.push_back(segment);
  }

  static constexpr std::uint64_t kNoLine = std::numeric_limits<std::uint32_t>::max();

  History history_;
  int version_ = 0;
  std::string section_;  // the newest key of the whole
  std::string part_;     // the newest key of a device
  std::vector<std::uint16_t> streams_;
  std::vector<std::uint16_t> pools_;
  std::vector<FrameId> frames_;
  std::vector<StackId> stacks_;
  std::vector<DetailsId> details_;
};

History of_history_json(InputFile file) {
  HistoryJson history;
  FileStream buffer(file);
  std::istream stream(&buffer);
  try {
    const auto take = [&](int depth, HistoryJson::Event event, Json& parsed) {
      return history.take(depth, event, parsed);
    };
    [[maybe_unused]] const Json emptied = Json::parse(stream, take);
    CACHALOT_REQUIRE(file.trouble().empty(), "{}", file.trouble());
    return history.finish();
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(fmt::format("{}: byte {}: {}", file.path(), buffer.position(), error.what()));
  } catch (const Json::exception& error) {
    throw InvalidArgument(fmt::format("{}: byte {}: {}", file.path(), buffer.position(), error.what()));
  }
}

}  // namespace

bool is_snapshot(InputFile& file) {
  const std::optional<unsigned char> first = file.peek();
  return first && (begins_json(*first) || begins_pickle(*first));
}

History read_snapshot_history(InputFile file) {
  const std::string path = file.path();
  require_snapshot(file);
  const bool is_json = begins_json(file.peek().value_or(0));
  const bool is_ours = is_json && file.begin().find("\"cachalot history\"") != std::string_view::npos;
  History history = is_ours   ? of_history_json(std::move(file))
                    : is_json ? of_json(std::move(file))
                              : read_pickle(std::move(file));
  history.path = path;
  history.format = is_json ? HistoryFormat::torch_json : HistoryFormat::torch_pickle;
  return history;
}

}  // namespace cachalot::tools
