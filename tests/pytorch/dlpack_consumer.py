"""Another library that takes tensors by DLPack, as CuPy does, written with ctypes: it checks what is in a capsule."""

import ctypes

python = ctypes.pythonapi
python.PyCapsule_GetPointer.restype = ctypes.c_void_p
python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_IsValid.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]


class DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class DLManagedTensor(ctypes.Structure):
    _fields_ = (("dl_tensor", DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("dl_tensor", DLTensor),
    )


class Array:
    """The library's array over a capsule. It holds the memory until `free`, which any thread may call."""

    def __init__(self, capsule, versioned):
        name = b"dltensor_versioned" if versioned else b"dltensor"
        if not python.PyCapsule_IsValid(capsule, name):
            raise ValueError(f"not a capsule {name.decode()!r}, or one that is consumed already")
        self._address = python.PyCapsule_GetPointer(capsule, name)
        kind = DLManagedTensorVersioned if versioned else DLManagedTensor
        self.managed = kind.from_address(self._address)
        self._used = b"used_" + name  # the capsule points to it
        python.PyCapsule_SetName(capsule, self._used)
        self._capsule = capsule
        tensor = self.managed.dl_tensor
        self.data = tensor.data + tensor.byte_offset
        self.device = (tensor.device_type, tensor.device_id)
        self.dtype = (tensor.code, tensor.bits, tensor.lanes)
        self.shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        self.strides = tuple(tensor.strides[i] for i in range(tensor.ndim))

    def free(self):
        ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self.managed.deleter)(self._address)
        self.managed = None


def from_dlpack(source, *, stream, versioned=True):
    """Imports an array as cupy.from_dlpack does, for work on the stream with this handle."""
    assert source.__dlpack_device__()[0] == 2
    version = {"max_version": (1, 0)} if versioned else {}
    return Array(source.__dlpack__(stream=stream, **version), versioned)
