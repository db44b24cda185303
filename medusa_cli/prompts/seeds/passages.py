"""Texts to work on: passages for summaries and questions, sentences to correct or translate, pieces of opinion."""

from __future__ import annotations


def _paragraphs(text: str) -> list[str]:
    return [" ".join(part.split()) for part in text.strip().split("\n\n")]


PASSAGES = _paragraphs("""
The harbour of Vesterø was built for sailing ships, and its stone walls still follow the curve of the bay. When
steamers arrived in the 1870s the basin proved too shallow, so the town dug a second harbour half a mile to the east.
Today the old basin is full of small boats, while ferries and trawlers use the new one. Twice a year a storm throws
seaweed over the quay, and the school closes for a morning so that the pupils can help to clear it.

Honeybees decide where to live by a kind of debate. When a swarm leaves the hive, several hundred scouts search the
area for hollow trees. Each scout that finds one returns and dances; the better the site, the longer the dance. Other
scouts inspect the places that are advertised and dance in turn. Little by little support gathers around one site, and
when about thirty bees are seen there at the same time the swarm takes off. The choice is usually the best one
available.

Marta opened her repair shop in March with a borrowed soldering iron and a table from her aunt's cellar. In the first
month she fixed eleven radios, four toasters and one electric guitar. By summer she had a waiting list. People came
with broken things, but they stayed because she explained what had gone wrong. In September the landlord raised the
rent by a third, and the customers collected signatures. The shop moved two streets away, next to the bakery.

Concrete is the most widely used building material in the world. It is made from cement, water, sand and gravel, and
it hardens through a chemical reaction that continues for years. Making cement releases carbon dioxide twice: once
when limestone is heated and once when fuel is burned to heat it. Engineers try to replace part of the cement with fly
ash, slag or ground clay. Such mixtures harden more slowly, which matters on building sites where every day costs
money.

The night train from the capital to the coast was cancelled in 2009 because too few people used it. Ten years later a
small company bought two sleeping cars, painted them green and applied for the old timetable slot. The first departure
was sold out in six minutes. Passengers say they like waking up by the sea; the company says that it still loses money
on every trip in winter and earns it back in July and August.

Sleep is not a single state. During the night the brain passes through cycles of about ninety minutes, each with
lighter, deeper and dreaming phases. Deep sleep comes mostly in the first half of the night and seems to restore the
body, while dreaming sleep grows longer toward morning. People who are woken in deep sleep are confused for some
minutes. Older adults sleep less deeply, though they do not necessarily need less sleep.

Our team tested three delivery routes during the first two weeks of May. Route A took 42 minutes on average and cost 9
euros per trip. Route B was faster, at 35 minutes, but it uses the toll bridge and cost 13 euros. Route C took 51
minutes and cost 8 euros, although it was late on four of the ten days because of roadworks. We recommend Route A for
normal parcels and Route B for anything that has been promised before noon.

The octopus has about five hundred million neurons, and two thirds of them are in its arms. An arm can taste what it
touches and can decide on simple movements without asking the brain. In laboratories octopuses have learned to open
jars, to tell people apart and to squirt water at lamps that annoy them. Most species live for only one or two years,
which makes their abilities all the more surprising.

When the library announced that it would lend tools as well as books, some council members laughed. The first list
held twenty items, among them a drill, a ladder and a sewing machine. Within a year the list had grown to three
hundred, mostly gifts. The drill is borrowed every weekend. A retired carpenter offers advice on Saturdays, and the
library counts more visitors than at any time since the cinema closed.

Volcanic soil is fertile because ash breaks down quickly and releases potassium, phosphorus and trace elements. That
is why people return to the slopes of dangerous mountains again and again. On one island farmers grow lemons on
terraces that were covered by lava three times in four centuries. They say that the mountain takes a field from the
grandfather and gives it back to the grandson.

Dear guests, please note that the swimming pool will be closed from Monday to Wednesday for maintenance. Breakfast is
served in the garden room from 7:00 to 10:30 during this time, because the terrace is next to the pool. The sauna
stays open until 21:00. Guests who booked a pool package will receive a voucher of 25 dollars for the restaurant. We
apologise for the inconvenience and thank you for your understanding. Your Hotel Belvedere team.

In 1854 a doctor in London marked every death from cholera on a map of his district. The marks clustered around one
water pump. Most doctors of the time believed that bad air caused the disease, but he argued that it travelled in
water, and he persuaded the parish to remove the pump's handle. The outbreak was already fading by then, yet the map
became famous as one of the first examples of tracing a disease by counting and drawing.

The recipe has been in our family for four generations, and nobody has ever written it down the same way twice. My
great-grandmother measured flour in coffee cups. My grandfather added a spoon of vinegar and refused to say why. My
mother uses half the sugar. All agree on two things: the dough must rest overnight, and the oven must be hotter than
you think is sensible.

Wind turbines are sited where the wind is steady rather than where it is strongest. A turbine starts to turn at about
three metres per second, reaches full power near twelve and is switched off in storms above twenty-five. Because power
grows with the cube of wind speed, a site with slightly faster wind yields much more electricity. Taller towers help,
since wind near the ground is slowed by trees, hills and houses.

The meeting started at ten with all department heads present except Mr. Jansen, who was ill. Ms. Reyes reported that
sales in the south rose by eight percent while the north stayed flat. The new warehouse will open on 14 October
instead of 1 September. Mr. Kaplan asked for two more people in customer service; the decision was postponed. The next
meeting is on the third Tuesday of the month, and Ms. Doyle will prepare the figures.

Chess engines changed the way people play. Fifty years ago a strong amateur could hope to find new ideas in the
opening at home; today every phone holds a program that beats the world champion. Some feared that the game would die.
Instead more people play than ever, commentators use the engine's verdict to explain mistakes, and young players copy
its taste for pushing pawns at the edge of the board.

Rain had fallen on the valley for nine days when the old bridge began to hum. The miller heard it first and took it
for the wind. By evening the whole village stood on the bank with lanterns, listening to the stones sing in the
current. At midnight the middle arch slipped sideways, almost politely, and was gone. In the morning two goats stood
on the far pier, chewing, as if they had been waiting for a ferry.

Migrating birds find their way with several compasses at once. They read the position of the sun, the pattern of the
stars and the direction of the Earth's magnetic field, and they remember coastlines and rivers. Young birds on their
first journey fly in an inherited direction; adults can correct for being blown off course. Bright cities confuse
them, and some towers switch off their lights on busy nights in autumn.

I bought this backpack for a two-week trip and used it every day. The straps are comfortable and the rain cover works.
The zip of the front pocket, however, broke on the third day, and the laptop sleeve is too tight for anything larger
than thirteen inches. Customer service answered within a day and sent me a new zip, which I had to sew in myself. For
the price I expected better, but I would still choose it over my old one.

A glacier is not a block of ice but a very slow river. Snow falls on its upper part, is pressed into ice and creeps
downhill under its own weight, a few centimetres or several metres a day. At the lower end the ice melts. If more snow
arrives than melts away, the glacier advances; if less, its tongue retreats, although the ice itself never flows
backwards.

The company was founded in 1987 by two sisters who sold umbrellas from a van. It now employs 640 people in four
countries. Last year it sold 2.1 million umbrellas, 300,000 raincoats and, for the first time, 45,000 pairs of rubber
boots. Profits fell slightly because of a dry spring. The sisters, both in their seventies, still test every new model
themselves by standing under the fire brigade's hose.

Learning to read changes the brain. Regions that once recognised faces and shapes become tuned to letters, and the
connection between seeing and hearing grows stronger. Adults who learn to read late show the same changes as children,
only more slowly. Scripts differ: readers of Chinese rely more on visual memory, readers of Finnish on sound, since
each Finnish letter nearly always stands for the same sound.

Grandfather kept his promises in a notebook. On the left he wrote what he had promised and to whom; on the right, the
day it was done. Most entries were small: a kite for Lena, a hinge for the neighbour's gate, a letter to an old friend
in Riga. After his death we found one line with nothing on the right side. It said: teach the children to swim. My
aunt closed the book, put on her coat and said that the lake was still warm.

The new tram line will connect the hospital with the main station in seventeen minutes. Construction starts in April
and is planned to last three years. Shop owners along Mill Street worry about noise and lost parking spaces, while
residents of the northern district have waited for a direct connection for decades. The city promises a free shuttle
bus and a fund of two million for businesses whose income falls during the works.

Salt was once so valuable that cities were built on it. It kept meat and fish from spoiling, it was taxed by kings,
and caravans crossed deserts to trade it for gold. Roman soldiers received an allowance for it, or so the story goes.
With canning, refrigeration and modern mining its price fell until it became something we hand out in paper packets
for nothing.

Patient arrived at 14:20 with a swollen left ankle after a fall on the stairs. No fever, blood pressure 128 over 82,
pulse 76. The X-ray showed no fracture. The ankle was cooled, bandaged and raised. Patient received 400 mg of
ibuprofen and crutches and was told to rest for three days, to return if the pain gets worse, and to start gentle
exercises after one week.

To most visitors the desert looks empty. At night, however, the ground comes alive: beetles climb the dunes to drink
the fog that settles on their backs, geckos bark from their holes, and foxes with enormous ears listen for larvae
below the sand. Plants have their own tricks. One of them has only two leaves, which grow for a thousand years and are
torn to ribbons by the wind.

The first version of the program was written in a weekend and served the office for eleven years. Nobody remembered
how it computed the holiday allowance, only that the result was right. When the old computer failed, three people
spent a month rebuilding it from printouts. They found two errors that had cancelled each other out. The new version
has tests, a manual and, in memory of the author, the same ugly green background.

Tea reached Europe in the seventeenth century as a medicine and became a fashion. Ships raced each other from China
with the first leaves of the season, since the earliest cargo fetched the highest price. Cheap sugar made the drink
popular with workers, and factories introduced pauses for it. A bitter plant from the mountains thus ended up setting
the rhythm of the industrial day.

Our school garden produced 48 kilograms of potatoes, 31 kilograms of pumpkins and a single watermelon this year. Class
5 planted the potatoes, class 6 the pumpkins, and the watermelon appeared by itself beside the compost. Half of the
harvest went to the canteen, a quarter was sold at the autumn fair for 93 euros, and the rest was given to the animal
shelter. With the money we will buy a water barrel.

A good map leaves things out. The drawing of an underground railway ignores distances and streets so that travellers
can see how lines connect. A nautical chart shows depths and lights but hardly anything on land. Hikers want contour
lines, drivers want road numbers. Every map answers a question, and the maker's first task is to know which question
it is.

Lightning heats the air around it to about thirty thousand degrees, five times hotter than the surface of the sun. The
air expands so quickly that it forms a shock wave, which we hear as thunder. Since light arrives almost at once and
sound needs three seconds per kilometre, counting the seconds between flash and thunder and dividing by three tells
how far away the storm is.

The referee blew the final whistle, but nobody left the pitch. For the first time in sixty-one years the fishermen's
club had beaten the team from the city, two to one, with a goal by a goalkeeper who had run the length of the field
because he had misunderstood his coach. The ball is now kept in the pub under a glass cheese cover.

Studies of long-lived people point to ordinary things: they move every day without calling it sport, eat mostly
plants, keep old friends and have a reason to get up in the morning. No single food explains their age. Genes matter
too, but for most of us less than we think. Researchers warn that records of births a century ago are often
unreliable.

The violin was bought at a flea market for forty euros, with one string and a crack in its back. The dealer thought it
a student instrument. A label inside, darkened by smoke, gave a name and the year 1761. Three experts disagreed for
two years, and in the end the rings of the spruce settled the matter: the tree had still been growing in 1830. It is a
copy, though a beautiful one, and she plays it every evening.

Remote work saves commuting time, but it also removes the small conversations through which people learn what others
are doing. Some companies answer with more meetings, which nobody enjoys. Others write more down: decisions, reasons
and open questions go into shared documents that anyone can read later. New employees find this easier than
experienced ones, who miss the corridor.
""")

FAULTY = _paragraphs("""
Yesterday me and my brother goes to the market for buying some vegetable, but the shop was close.

Their going to loose the game if they dont practise more then twice a week.

I has been working here since five years and I am knowing every body in the office.

The informations you gave me was very helpfull, I will sent you the documents tomorow.

Each of the student have to bring there own lunch, accept on friday.

He speak english very good but his writting need some improvments.

If I would have knew about the party, I would of came with you.

The weather were so bad that we was forced too cancel the picnic, it make everybody sad.

Neither of the two solution are correct, so we must to find an other one.

Its important that every employee knows it's rights and dont be afraid of asking.

My sister which lives in spain she is visiting us next weak with his husband.

The company have grew fast, less people knows what is happening in the others departments.

I am looking forward to hear from you and hope you can advice me on this matter.

We discussed about the budget during hours but didn't took any decision at the end.

There is many reasons why peoples prefers to travelling by train instead as by plane.

The childs was playing in the garden while there parents prepares the diner in the kitchen.

She don't like neither coffee or tea, she always drink water with a lemons in it.

When I was arriving at the station the train already leaves, so I must waited one hour.

Between you and I, the new manager is more friendlier as the old one was.

The police has arrested a man who's car was stole in front of the bank last nite.
""")

SENTENCES = _paragraphs("""
Where is the nearest pharmacy?

I would like a table for four at half past seven.

The train to the airport leaves from platform three.

Could you speak a little more slowly, please?

My grandmother used to tell us stories about the sea.

It has been raining since early morning, so we stayed at home.

The museum is closed on Mondays, but the garden is open every day.

If you mix blue and yellow, you get green.

We are looking for a quiet room with a view of the mountains.

Thank you very much for your help; I really appreciate it.

The children built a castle out of snow and painted it red.

He forgot his keys and had to wait until his sister came home.

Please send the invoice to the address below before the end of the month.

I have been learning to play the cello for two years.

The soup is too salty, but the bread is excellent.

Nobody knew why the old clock had started to tick again.

Turn left at the church and walk straight on for ten minutes.

Our flight was delayed because of fog, and we missed the connection.

She works in a laboratory where new medicines are tested.

Happy birthday! I wish you health, luck and a wonderful year.

The cat sleeps on the warm roof of the car.

Can I pay by card, or do you only take cash?

Tomorrow we will visit our friends in the countryside.

He who asks is a fool for five minutes; he who does not ask remains one for ever.
""")

OPINIONS = _paragraphs("""
The new phone looks great, but the battery dies before dinner and the camera is no better than last year's.

Absolutely wonderful service: the waiter remembered our names, and the dessert was on the house.

I waited forty minutes on hold only to be told that I should try again on Monday.

The film starts slowly, yet by the second half I had forgotten to eat my popcorn.

It does what it says. Nothing more, nothing less.

We have had this washing machine for nine years, and it has never let us down.

The hotel was clean, but our room faced a night club and the walls were thin as paper.

The instructions are a joke, two screws were missing, and the shelf still leans to the left.

Friendly staff, fair prices, and the best lentil soup in the district.

I wanted to like this book. The idea is brilliant, the characters are cardboard.

The update fixed the crashes, although the search is slower now than before.

My son laughed through the whole show and asked to go again the next day.

Delivery was two weeks late and nobody told us; the sofa itself is beautiful.

An average concert in a marvellous hall. The encore was worth the ticket.

The app asks for my location, my contacts and my patience.

For the first time in years I slept through the night. I recommend this pillow to everyone.
""")
