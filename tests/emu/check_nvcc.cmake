# Compiles KERNEL for the architectures that the backend is built for: warnings are errors, and so is a kernel that
# spills registers or keeps an array in local memory.
cmake_minimum_required(VERSION 3.25)
if(NOT NVCC)
    message("skipped: nvcc is not there")
    return()
endif()
execute_process(
    COMMAND ${NVCC} -std=c++17 -O3 --fmad=false -Werror all-warnings -Xptxas -v -Xcompiler=-Wall,-Wextra,-Werror
            -I${ROOT}/kernels/cuda -I${ROOT}/kernels/ref
            -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90a,code=sm_90a
            -gencode "arch=compute_100,code=[sm_100,compute_100]" -c ${KERNEL} -o ${OUT}
    RESULT_VARIABLE result OUTPUT_VARIABLE text ERROR_VARIABLE text)
if(NOT result EQUAL 0)
    message(FATAL_ERROR "${KERNEL}: ${text}")
endif()
# Without the line there would be nothing to check.
string(REGEX MATCHALL "[0-9]+ bytes stack frame, [0-9]+ bytes spill stores, [0-9]+ bytes spill loads" frames "${text}")
if(NOT frames)
    message(FATAL_ERROR "${KERNEL}: ptxas said nothing of stack frames: ${text}")
endif()
list(FILTER frames EXCLUDE REGEX "^0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads$")
if(frames)
    message(FATAL_ERROR "${KERNEL} spills or has a local array: ${text}")
endif()
