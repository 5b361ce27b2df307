// The opcodes of Python's pickles.
#pragma once

namespace cachalot::tools {

// Python's pickletools.py documents them. Those that are not here do not exist.
enum class Opcode : unsigned char {
  mark = '(',
  stop = '.',
  pop = '0',
  pop_mark = '1',
  dup = '2',
  float_line = 'F',
  int_line = 'I',
  binint = 'J',
  binint1 = 'K',
  long_line = 'L',
  binint2 = 'M',
  none = 'N',
  persid = 'P',
  binpersid = 'Q',
  reduce = 'R',
  string = 'S',
  binstring = 'T',
  short_binstring = 'U',
  unicode = 'V',
  binunicode = 'X',
  append = 'a',
  build = 'b',
  global = 'c',
  dict = 'd',
  appends = 'e',
  get = 'g',
  binget = 'h',
  inst = 'i',
  long_binget = 'j',
  list = 'l',
  obj = 'o',
  put = 'p',
  binput = 'q',
  long_binput = 'r',
  setitem = 's',
  tuple = 't',
  setitems = 'u',
  binbytes = 'B',
  short_binbytes = 'C',
  binfloat = 'G',
  empty_tuple = ')',
  empty_list = ']',
  empty_dict = '}',
  proto = 0x80,
  newobj = 0x81,
  ext1 = 0x82,
  ext2 = 0x83,
  ext4 = 0x84,
  tuple1 = 0x85,
  tuple2 = 0x86,
  tuple3 = 0x87,
  newtrue = 0x88,
  newfalse = 0x89,
  long1 = 0x8a,
  long4 = 0x8b,
  short_binunicode = 0x8c,
  binunicode8 = 0x8d,
  binbytes8 = 0x8e,
  empty_set = 0x8f,
  additems = 0x90,
  frozenset = 0x91,
  newobj_ex = 0x92,
  stack_global = 0x93,
  memoize = 0x94,
  frame = 0x95,
  bytearray8 = 0x96,
  next_buffer = 0x97,
  readonly_buffer = 0x98,
};

// Returns the name of an opcode that is never carried out, because in Python it would run, or refer to, something
// outside of the file. nullptr for others.
inline const char* refused_name(Opcode opcode) {
  switch (opcode) {
    case Opcode::global:
      return "GLOBAL";
    case Opcode::stack_global:
      return "STACK_GLOBAL";
    case Opcode::reduce:
      return "REDUCE";
    case Opcode::inst:
      return "INST";
    case Opcode::obj:
      return "OBJ";
    case Opcode::newobj:
      return "NEWOBJ";
    case Opcode::newobj_ex:
      return "NEWOBJ_EX";
    case Opcode::build:
      return "BUILD";
    case Opcode::persid:
      return "PERSID";
    case Opcode::binpersid:
      return "BINPERSID";
    case Opcode::ext1:
      return "EXT1";
    case Opcode::ext2:
      return "EXT2";
    case Opcode::ext4:
      return "EXT4";
    case Opcode::next_buffer:
      return "NEXT_BUFFER";
    case Opcode::readonly_buffer:
      return "READONLY_BUFFER";
    default:
      return nullptr;
  }
}

}  // namespace cachalot::tools
