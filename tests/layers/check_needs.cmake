# cmake -D NM=<nm> -D OBJDUMP=<objdump> -D SHARED=<libraries> -D ARCHIVES=<archives> -P check_needs.cmake
# No library of ours is linked with CUDA: the shared ones need no library of it, and nothing has a symbol of the CUDA runtime
# or driver that somebody else must define.

cmake_minimum_required(VERSION 3.25)
foreach(library IN LISTS SHARED)
  execute_process(COMMAND ${OBJDUMP} -p ${library} OUTPUT_VARIABLE headers COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "(NEEDED|RPATH|RUNPATH) +[^\n]+" lines "${headers}")
  if(NOT lines MATCHES "NEEDED +libc\\.so")
    message(FATAL_ERROR "${library} does not need libc: nothing was checked")
  endif()
  foreach(line IN LISTS lines)
    if(line MATCHES "cuda|nvidia|/cu[0-9]")
      message(FATAL_ERROR "${library} is linked with CUDA: ${line}")
    endif()
  endforeach()
endforeach()

foreach(library IN LISTS SHARED ARCHIVES)
  set(dynamic "")
  if(library IN_LIST SHARED)
    set(dynamic --dynamic)
  endif()
  execute_process(COMMAND ${NM} ${dynamic} --undefined-only --format=posix ${library} OUTPUT_VARIABLE symbols
    COMMAND_ERROR_IS_FATAL ANY ERROR_QUIET)
  if(NOT symbols MATCHES "\ndlopen|\nmemcpy")
    message(FATAL_ERROR "${library} needs neither dlopen nor memcpy: nothing was checked")
  endif()
  string(REGEX MATCHALL "\n(cu[A-Z]|cuda|__cuda)[A-Za-z0-9_]*" undefined "${symbols}")
  if(undefined)
    message(FATAL_ERROR "${library} needs functions of CUDA: ${undefined}")
  endif()
  message(STATUS "${library} needs nothing of CUDA")
endforeach()
