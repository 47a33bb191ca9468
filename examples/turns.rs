use rendez::engine::*; use rendez::shard::run::PollPolicy;
fn main(){ let mut c=Config::new("/job:a/task:0"); c.shards=1; c.cores=vec![0]; c.poll=PollPolicy::Busy; c.control=false; let a=Engine::start(c).unwrap();
 let mut c=Config::new("/job:b/task:0"); c.shards=1; c.cores=vec![1]; c.poll=PollPolicy::Busy; c.control=false; let b=Engine::start(c).unwrap();
 let t=|e:&Engine|{let s0=e.stats()[0].turns; let t=std::time::Instant::now(); std::thread::sleep(std::time::Duration::from_millis(500)); let s1=e.stats()[0].turns; println!("{} ns/turn", t.elapsed().as_nanos() as f64/(s1-s0) as f64);};
 t(&a); a.connect_local(&b).unwrap(); std::thread::sleep(std::time::Duration::from_millis(50)); t(&a); t(&b); }
