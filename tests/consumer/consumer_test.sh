#!/usr/bin/env bash
# consumer_test.sh MODE CMAKE SOURCE_DIR BUILD_DIR WITH_TORCH LAUNCHER: builds and runs tests/consumer.
#   install       against `cmake --install BUILD_DIR`, moved to another place after it
#   subdirectory  with the checkout as a subdirectory; the torch-free part only, since the rest takes minutes
set -euo pipefail
mode=$1 cmake=$2 source_dir=$3 build_dir=$4 with_torch=$5 launcher=$6
: "${CXX:=c++}"

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
common=(-G Ninja -S "$source_dir/tests/consumer" -B "$work/build" -DCMAKE_BUILD_TYPE=
  "-DCMAKE_CXX_COMPILER=$CXX" "-DCMAKE_CXX_COMPILER_LAUNCHER=$launcher" -DCMAKE_CXX_FLAGS=-O0)
# The work folder has another name each time; ccache shall know the files again all the same.
export CCACHE_NOHASHDIR=true CCACHE_BASEDIR=$work

case $mode in
  install)
    "$cmake" --install "$build_dir" --prefix "$work/first" >"$work/install.log"
    mv "$work/first" "$work/with space"
    prefix="$work/with space"
    # What we use inside must not reach those who use us.
    if grep -rnE '#include *[<"](yaml-cpp|nlohmann|CLI|gloo|mpi\.h|.*ProcessGroupGloo|.*ProcessGroupNCCL)' "$prefix/include"; then
      echo "the public headers above include what only our own files may" >&2
      exit 1
    fi
    if grep -rn -F -e "$source_dir/accelerate" -e "$build_dir/" "$prefix"/lib*/cmake "$prefix/include"; then
      echo "the installed files above name the checkout" >&2
      exit 1
    fi
    "$cmake" "${common[@]}" "-DCMAKE_PREFIX_PATH=$prefix" "-DCONSUMER_TORCH=$with_torch"
    "$cmake" --build "$work/build"
    "$work/build/consumer"
    [[ $with_torch != ON ]] || "$work/build/consumer_torch"
    # The program finds its library from where it was moved to.
    if readelf -d "$prefix/bin/accel" | grep -E 'R(UN)?PATH' | grep -F -e "$build_dir" -e "$work"; then
      echo "accel's run path holds an absolute path" >&2
      exit 1
    fi
    "$prefix/bin/accel" --help >/dev/null
    # A source is compiled against what lies beside the program.
    XDG_CACHE_HOME=$work/cache "$prefix/bin/accel" launch --cpu --num_processes 1 --cxxflags=-O0 \
      "$source_dir/tests/consumer/main.cpp"
    [[ $with_torch != ON ]] || CUDA_VISIBLE_DEVICES=-1 "$prefix/bin/accel" test
    ;;
  subdirectory)
    "$cmake" "${common[@]}" "-DACCELERATE_SUBDIRECTORY=$source_dir" -DACCELERATE_CORE_ONLY=ON
    "$cmake" --build "$work/build" --target consumer
    "$work/build/consumer"
    # A subproject brings no tests, examples or install rules of its own.
    if [[ -e $work/build/accelerate/tests || -e $work/build/accelerate/examples ]]; then
      echo "accelerate as a subdirectory must not add its tests and examples" >&2
      exit 1
    fi
    if [[ $with_torch == ON ]]; then
      "$cmake" "${common[@]}" "-DACCELERATE_SUBDIRECTORY=$source_dir" -DACCELERATE_CORE_ONLY=OFF \
        -DCONSUMER_TORCH=ON -DACCELERATE_CUDA=OFF
    fi
    ;;
  *)
    echo "unknown mode: $mode" >&2
    exit 2
    ;;
esac
echo "consumer ($mode, torch $with_torch): ok"
