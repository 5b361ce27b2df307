function(cachalot_pytest name mode)
  cachalot_python_test(${name} pytorch 1800 -m pytest -q -p no:cacheprovider ${ARGN})
  if(TEST ${name})  # not under sanitizers
    set_property(TEST ${name} APPEND PROPERTY ENVIRONMENT CACHALOT_TEST_MODE=${mode})
    set_property(TEST ${name} PROPERTY COST 1000)  # the longest begin first, beside the others
  endif()
endfunction()

# Tests of a mode are one run of pytest: native (PyTorch's own allocator, the oracle), plug, full, pages (full, on the
# page heap). Those of `cachalot simulate` and `fit` are of their own, which run beside the others, as are those of pinned memory,
# which needs torch's host allocator to be changed in the whole process. Every change runs all tests once, and on the page heap those
# that the heap changes most; the other modes, and what takes minutes, have the label drawn.
function(cachalot_python_tests)
  set(heap conformance differential engines functions models pools real_engines sharing sleep snapshots switches_native weaknesses)
  set(simulate simulate races)
  set(fit advise fit owners serving)
  set(simulate_more computing libtorch simulate_distributed)
  set(pinned pinned pinned_processes)
  set(programs convert pytest_plugin ranks stage)  # of programs as a whole, which the heap does not change
  set(recorded expandable_segments)
  foreach(group IN ITEMS heap simulate simulate_more fit pinned programs recorded)
    list(TRANSFORM ${group} REPLACE "(.+)" "${PROJECT_SOURCE_DIR}/tests/pytorch/test_\\1.py" OUTPUT_VARIABLE of_${group})
    list(TRANSFORM of_${group} PREPEND --ignore= OUTPUT_VARIABLE but_${group})
  endforeach()
  set(all ${but_simulate} ${but_simulate_more} ${but_fit} ${but_pinned} ${but_programs} ${PROJECT_SOURCE_DIR}/tests/pytorch)
  cachalot_pytest(pytorch.full full ${but_recorded} ${all})
  cachalot_pytest(pytorch.pages pages ${of_heap})
  cachalot_pytest(pytorch.simulate full ${of_simulate})
  cachalot_pytest(pytorch.pinned full ${of_pinned})
  cachalot_pytest(pytorch.programs full ${of_programs})

  cachalot_pytest(pytorch.native native ${all})
  cachalot_pytest(pytorch.plug plug ${all})
  cachalot_pytest(pytorch.pages_more pages ${but_heap} ${all})
  cachalot_pytest(pytorch.recorded full ${of_recorded})
  cachalot_pytest(pytorch.simulate_more full ${of_simulate_more})
  cachalot_pytest(pytorch.fit full ${of_fit})
  cachalot_pytest(pytorch.pinned_native native ${PROJECT_SOURCE_DIR}/tests/pytorch/test_pinned.py)
  cachalot_pytest(pytorch.programs_native native ${of_programs})
  cachalot_drawn(pytorch.native pytorch.plug pytorch.pages_more pytorch.recorded pytorch.simulate_more pytorch.fit pytorch.pinned_native
    pytorch.programs_native)
endfunction()
cachalot_python_tests()

cachalot_python_test(analysis.causes analysis 900 ${PROJECT_SOURCE_DIR}/tests/analysis/check_causes.py)
cachalot_python_test(analysis.remedies analysis 900 ${PROJECT_SOURCE_DIR}/bench/explain_remedies.py
  expandable_segments no_max_split_size no_private_pool one_graph_pool one_stream free_leak raise_limit
  answers limited oversize private_pool other_stream graph_pools leak)
cachalot_python_test(documents.grpo documents 300 ${PROJECT_SOURCE_DIR}/bench/grpo.py --build ${PROJECT_BINARY_DIR}
  --check ${PROJECT_SOURCE_DIR}/docs/pictures/grpo.csv)
cachalot_drawn(analysis.causes analysis.remedies documents.grpo)
