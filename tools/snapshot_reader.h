// Reads pictures of a program's GPU memory: the pickles of torch.cuda.memory._dump_snapshot and of torch.cuda.memory_snapshot,
// and the JSON of cachalot's own snapshots (to_json, cachalot_snapshot_json), each plain or gzip.
//
// The file may be a stranger's: pickle_reader.h says what is refused. A snapshot whose parts do not fit together is refused
// as well, by the first rule that it breaks. Keys that are not known are passed over, as other versions of PyTorch have
// others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cachalot/snapshot.h"
#include "tools/input_file.h"
#include "tools/plain_document.h"

namespace cachalot::tools {

struct Frame {
  std::string_view file;
  std::uint64_t line = 0;
  std::string_view function;

  friend auto operator<=>(const Frame&, const Frame&) = default;  // NOLINT(modernize-use-nullptr): not one of ours
};

// Where in the program something was asked for, the newest call first.
struct Site {
  std::vector<Frame> frames;  // one at least
  // The frame that tells its owner most: the newest Python one that is none of a library's; else the newest.
  Frame place;
};

struct TorchSnapshot {
  std::string path;
  Snapshot memory;                  // every Context that is not null is a Site; `options` has the text alone
  std::size_t unknown_actions = 0;  // entries of the history that are left out: a newer PyTorch's
  std::shared_ptr<const PlainDocument> document;  // the frames' texts are in it
};

inline const Site* site_of(const Context& context) { return static_cast<const Site*>(context.get()); }

// Whether the file begins as a pickle or as JSON does; a trace does not.
bool is_snapshot(InputFile& file);

// Throws InvalidArgument, which says what the file is, unless it begins as a snapshot.
void require_snapshot(InputFile& file);

// Throws InvalidArgument, which names file, place and rule.
TorchSnapshot read_snapshot(InputFile file);

}  // namespace cachalot::tools
