#include "tools/history/pickle_program.h"

#include <bit>
#include <cstddef>
#include <cstdint>

#include "tools/history/parts.h"
#include "tools/history/pickle_scalars.h"
#include "tools/pickle_opcodes.h"

namespace cachalot::tools {
namespace {

constexpr std::uint64_t kNewestProtocol = 5;

class PickleProgram {
 public:
  PickleProgram(PickleInput& input, SnapshotMachine& machine) : input_(input), machine_(machine) {}

  // Carries out one opcode. Returns false for the last one.
  bool step() {
    const Opcode opcode = input_.opcode();
    if (memo(opcode) || text(opcode) || number(opcode) || container(opcode) || other(opcode)) [[likely]]
      return true;
    if (const char* name = refused_name(opcode)) {
      input_.require(false, "{} is refused: it names or calls something of Python's, and only plain data is read",
                     name);
    }
    input_.require(opcode == Opcode::stop, "there is no such opcode: this is no pickle, or a damaged one");
    machine_.stop();
    input_.require_end();
    return false;
  }

 private:
  // ---- opcodes, by what they are about; false: it is none of these

  bool number(Opcode opcode) {
    switch (opcode) {
      case Opcode::none:
        machine_.push(Part());
        return true;
      case Opcode::newtrue:
      case Opcode::newfalse:
        machine_.push(Part::of_boolean(opcode == Opcode::newtrue));
        return true;
      case Opcode::binint:
        machine_.push(Part::of_integer(static_cast<std::int32_t>(input_.natural(4))));
        return true;
      case Opcode::binint1:
        machine_.push(Part::of_integer(static_cast<std::int64_t>(input_.natural(1))));
        return true;
      case Opcode::binint2:
        machine_.push(Part::of_integer(static_cast<std::int64_t>(input_.natural(2))));
        return true;
      case Opcode::long1:
        machine_.push(long_integer(input_, input_.natural(1)));
        return true;
      case Opcode::long4:
        machine_.push(long_integer(input_, input_.natural(4)));
        return true;
      case Opcode::binfloat:
        machine_.push(Part::of_real(std::bit_cast<double>(__builtin_bswap64(input_.natural(8)))));
        return true;
      case Opcode::int_line:
        machine_.push(integer_or_boolean(input_, input_.line()));
        return true;
      case Opcode::long_line:
        machine_.push(long_decimal(input_, input_.line()));
        return true;
      case Opcode::float_line:
        machine_.push(real(input_, input_.line()));
        return true;
      default:
        return false;
    }
  }

  bool text(Opcode opcode) {
    switch (opcode) {
      case Opcode::short_binunicode:
      case Opcode::short_binstring:
        machine_.push_text(input_.natural(1));
        return true;
      case Opcode::binunicode:
      case Opcode::binstring:
        machine_.push_text(input_.natural(4));
        return true;
      case Opcode::binunicode8:
        machine_.push_text(input_.natural(8));
        return true;
      case Opcode::short_binbytes:
        machine_.push_bytes(input_.natural(1));
        return true;
      case Opcode::binbytes:
        machine_.push_bytes(input_.natural(4));
        return true;
      case Opcode::binbytes8:
      case Opcode::bytearray8:
        machine_.push_bytes(input_.natural(8));
        return true;
      case Opcode::unicode:
        machine_.push_text(unescaped_unicode(input_, input_.line(SnapshotMachine::kLongestLine)));
        return true;
      case Opcode::string:
        machine_.push_text(unescaped_string(input_, input_.line(SnapshotMachine::kLongestLine)));
        return true;
      default:
        return false;
    }
  }

  bool container(Opcode opcode) {
    switch (opcode) {
      case Opcode::empty_list:
      case Opcode::empty_tuple:
      case Opcode::empty_set:
        machine_.push_list();
        return true;
      case Opcode::empty_dict:
        machine_.push_dict();
        return true;
      case Opcode::list:
      case Opcode::tuple:
      case Opcode::frozenset:
        machine_.collect_to_mark();
        return true;
      case Opcode::tuple1:
      case Opcode::tuple2:
      case Opcode::tuple3:
        machine_.collect(static_cast<std::size_t>(opcode) - static_cast<std::size_t>(Opcode::tuple1) + 1);
        return true;
      case Opcode::dict:
        machine_.collect_dict_to_mark();
        return true;
      case Opcode::append:
        machine_.append();
        return true;
      case Opcode::appends:
      case Opcode::additems:
        machine_.extend_to_mark();
        return true;
      case Opcode::setitem:
        machine_.set_item();
        return true;
      case Opcode::setitems:
        machine_.set_items_to_mark();
        return true;
      default:
        return false;
    }
  }

  bool memo(Opcode opcode) {
    switch (opcode) {
      case Opcode::memoize:
        machine_.memoize();
        return true;
      case Opcode::put:
        machine_.memoize(memo_index(input_, input_.line()));
        return true;
      case Opcode::binput:
        machine_.memoize(input_.natural(1));
        return true;
      case Opcode::long_binput:
        machine_.memoize(input_.natural(4));
        return true;
      case Opcode::get:
        machine_.recall(memo_index(input_, input_.line()));
        return true;
      case Opcode::binget:
        machine_.recall(input_.natural(1));
        return true;
      case Opcode::long_binget:
        machine_.recall(input_.natural(4));
        return true;
      default:
        return false;
    }
  }

  bool other(Opcode opcode) {
    switch (opcode) {
      case Opcode::mark:
        machine_.push_mark();
        return true;
      case Opcode::pop:
        machine_.pop();
        return true;
      case Opcode::pop_mark:
        machine_.pop_to_mark();
        return true;
      case Opcode::dup:
        machine_.duplicate();
        return true;
      case Opcode::proto: {
        const std::uint64_t protocol = input_.natural(1);
        input_.require(protocol <= kNewestProtocol, "protocol {}: 0 to {} can be read", protocol, kNewestProtocol);
        return true;
      }
      case Opcode::frame:  // for readers that fetch whole frames: nothing in it is needed here
        input_.natural(8);
        return true;
      default:
        return false;
    }
  }

  PickleInput& input_;
  SnapshotMachine& machine_;
};

}  // namespace

void run_pickle(PickleInput& input, SnapshotMachine& machine) {
  PickleProgram program(input, machine);
  while (program.step()) {
  }
}

}  // namespace cachalot::tools
